"""vLLM's backend on a CPU, with a card: the cache is filled and read by us, everything else is vLLM's."""

from typing import Any

import torch
from torch import Tensor
from vllm.config import get_current_vllm_config
from vllm.logger import init_logger
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl

from sharpmax.vllm.attention import SharpenedLayer, has_card, write_cache

logger = init_logger("vllm.sharpmax")  # vLLM shows what is logged below its own name


class SharpenedCPUBackend(CPUAttentionBackend):
    """vLLM's own, but that its layers attend with a card where the config names one."""

    @staticmethod
    def get_impl_cls() -> type[CPUAttentionBackendImpl]:
        """Return our implementation where there is a card, and vLLM's own where there is none."""
        return SharpenedCPULayer if has_card(get_current_vllm_config()) else CPUAttentionBackendImpl


class SharpenedCPULayer(SharpenedLayer, CPUAttentionBackendImpl):
    """One layer. vLLM's kernels keep keys in an order of their own, so we write the cache that we read."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.take_card(get_current_vllm_config())
        logger.info_once("sharpmax: attention is served with a card")

    def do_kv_cache_update(
        self, layer: torch.nn.Module, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Write the new keys and values as we read them."""
        write_cache(kv_cache, key, value, slot_mapping)
