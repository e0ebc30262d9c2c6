"""Models that already scale their logits with length: say so before a second length temperature is put on top."""

import warnings
from typing import Any

from sharpmax.core.policies import Policy


class SecondTemperatureWarning(UserWarning):
    """The model scales its logits with length by itself, and the policy does so again."""


def own_temperature(config: Any) -> str | None:
    """Return what a config says of a length temperature of the model's own; None if it has none."""
    if getattr(config, "attn_temperature_tuning", False):
        return "attn_temperature_tuning (Llama 4)"
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    # Gemma 3 and others keep one set of parameters for each kind of layer.
    for parameters in (rope, *(part for part in rope.values() if isinstance(part, dict))):
        if parameters.get("llama_4_scaling_beta"):
            return "llama_4_scaling_beta (Ministral)"
        if parameters.get("rope_type", parameters.get("type")) in ("yarn", "longrope"):
            return f"rope_type {parameters.get('rope_type', parameters.get('type'))}"
    return None


def warn_of_second_temperature(policy: Policy, configs: list[Any]) -> None:
    """Warn if the policy depends on the length and the model has a length temperature already."""
    if not policy.needs & {"count", "position"}:
        return
    for config in configs:
        own = own_temperature(config)
        if own is not None:
            warnings.warn(
                f"this model scales its attention with length already ({own}); {type(policy).__name__} scales it again",
                SecondTemperatureWarning,
                stacklevel=4,
            )
            return
