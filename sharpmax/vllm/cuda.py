"""vLLM's Triton backend on a GPU, with a card: its cache and metadata, our kernels. Chosen as `CUSTOM`.

Cascade attention is never chosen: the backend it is taken from has none.
"""

from typing import Any, ClassVar

from vllm.config import get_current_vllm_config
from vllm.logger import init_logger
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend, TritonAttentionImpl

from sharpmax.vllm.attention import SharpenedLayer
from sharpmax.vllm.settings import CACHES

logger = init_logger("vllm.sharpmax")  # vLLM shows what is logged below its own name


class SharpenedCUDABackend(TritonAttentionBackend):
    """vLLM's own Triton backend, but for what it serves and for the attention itself."""

    supported_kv_cache_dtypes: ClassVar[list[Any]] = sorted(CACHES)

    @staticmethod
    def get_name() -> str:
        """Return the name by which vLLM's logs call it."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[TritonAttentionImpl]:
        """Return our implementation: this backend is chosen only with a card."""
        return SharpenedCUDALayer

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        """Serve decoders alone."""
        return bool(attn_type == AttentionType.DECODER)

    @classmethod
    def supports_non_causal(cls) -> bool:
        """Serve causal attention alone."""
        return False

    @classmethod
    def supports_mm_prefix(cls) -> bool:
        """Serve no image whose parts see one another."""
        return False

    @classmethod
    def supports_rswa(cls) -> bool:
        """Serve no window that moves."""
        return False

    @classmethod
    def supports_alibi_sqrt(cls) -> bool:
        """Serve no positions by ALiBi."""
        return False

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        """Serve what our kernels hold."""
        return 32 <= head_size <= 256


class SharpenedCUDALayer(SharpenedLayer, TritonAttentionImpl):
    """One layer; keys and values are written by vLLM's own code."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.take_card(get_current_vllm_config())
        logger.info_once("sharpmax: attention is served with a card")

    def fused_output_quant_supported(self, quant_key: Any) -> bool:
        """Write no quantised output."""
        return False
