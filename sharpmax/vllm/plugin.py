"""Register with vLLM: called by it in every process that it starts.

Two things are registered, and both do nothing without a card:

- our backends: in place of the CPU's own (there vLLM takes no other), and as `CUSTOM` on a GPU;
- a check of the config, before anything is loaded: a card that cannot be served stops the server in one line.
"""

from functools import wraps
from typing import Any

from sharpmax.core.policies.base import Policy
from sharpmax.vllm.settings import Served, card_path, policy_for


def register() -> None:
    """Make our backends known to vLLM and have configs with a card checked; harmless the second time."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if current_platform.is_cpu():
        register_backend(AttentionBackendEnum.CPU_ATTN, "sharpmax.vllm.cpu.SharpenedCPUBackend")
    else:
        register_backend(AttentionBackendEnum.CUSTOM, "sharpmax.vllm.cuda.SharpenedCUDABackend")
    platform: Any = type(current_platform)
    before = platform.check_and_update_config
    if hasattr(before, "sharpmax"):
        return

    @wraps(before.__func__)
    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        before.__func__(cls, vllm_config)
        prepare(vllm_config)

    check_and_update_config.sharpmax = True  # type: ignore[attr-defined]
    platform.check_and_update_config = classmethod(check_and_update_config)


def prepare(vllm_config: Any) -> None:
    """Check the card that a config names, if any, and choose our backend; raises ValueError in one line."""
    if vllm_config.model_config is None:
        return
    try:
        path = card_path(vllm_config.additional_config, vllm_config.model_config.model)
        if path is None:
            return
        _choose_backend(vllm_config, policy_for(path, vllm_config.additional_config, served_by(vllm_config)))
    except ValueError as error:
        from vllm.logger import init_logger

        init_logger("vllm.sharpmax").error("%s", error)  # a line of its own, before what vLLM makes of it
        raise


def _choose_backend(vllm_config: Any, policy: Policy) -> None:
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    if current_platform.is_cpu():
        return
    if not current_platform.is_cuda():
        raise ValueError(f"sharpmax: a card is served on CPUs and NVIDIA GPUs, not on {current_platform.device_name}")
    for layer in range(vllm_config.model_config.hf_text_config.num_hidden_layers):
        if (one := policy.for_layer(layer)).iterative and not vllm_config.model_config.enforce_eager:
            raise ValueError(
                f"sharpmax: {type(one).__name__} is solved for by PyTorch, which no CUDA graph can hold; add "
                "--enforce-eager, or serve a card of another policy"
            )
    chosen = vllm_config.attention_config.backend
    if chosen not in (None, AttentionBackendEnum.CUSTOM):
        raise ValueError(f"sharpmax: the backend {chosen.name} would serve without the card; drop --attention-backend")
    vllm_config.attention_config.backend = AttentionBackendEnum.CUSTOM


def served_by(vllm_config: Any) -> Served:
    """Return what the plug-in asks of a config, as plain values."""
    import vllm

    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    text = model.hf_text_config
    kinds = getattr(text, "layer_types", None) or ()
    names = model.served_model_name or ()
    return Served(
        model=model.model,
        names=(names,) if isinstance(names, str) else tuple(names),
        layers=text.num_hidden_layers,
        heads=text.num_attention_heads,
        version=vllm.__version__,
        cache=vllm_config.cache_config.cache_dtype,
        dtype=str(getattr(model, "dtype", "auto")).removeprefix("torch."),
        generates=model.runner_type == "generate",
        has_mla=bool(model.use_mla),
        is_encoder_decoder=bool(model.is_encoder_decoder),
        all_layers_attend=all(str(kind).endswith("attention") and "linear" not in str(kind) for kind in kinds),
        rope=dict(getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}),
        speculates=vllm_config.speculative_config is not None,
        splits_context=parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1,
    )
