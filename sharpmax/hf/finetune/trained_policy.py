"""The policy that a model is fine-tuned with, by name; and numbers of it that are trained along, one or three per head.

    none     plain attention                        paper    the published polynomial in every head
    ssmax    beta = s·log n, s learned per head     learn    log beta = a + b·log(n/n0) + c·(H - 1), learned per head

or a card. Learned numbers are parameters of the attention modules (`sharpmax_…`), so whatever moves,
wraps or synchronises the model does the same to them. They are saved as a card beside the weights, not among them.
"""

import dataclasses
import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from sharpmax import defaults
from sharpmax.cards import SHIPPED, card_file
from sharpmax.core.cards import CARD_FILE, Card, load_card, load_policy
from sharpmax.core.policies import PAPER, LengthScaled, LogLinear, PerLayer, Policy
from sharpmax.extras import extra
from sharpmax.hf.calibration.learn import query_heads
from sharpmax.hf.sharpen.layers import attention_layers
from sharpmax.spelling import did_you_mean

with extra("hf"):
    import torch
    from torch import nn

NAMES = defaults.POLICIES
PREFIX = "sharpmax_"
USUAL_LENGTH = 256
"""Visible keys at which SSMax starts as plain attention, about the middle of what CLRS-Text shows a model."""


def policy_named(name: str | PathLike[str], model: Any) -> Policy | None:
    """Return the policy to train the model with; parameters of it that learn are put on the model's attention modules.

    Raises:
        ValueError: neither a name nor a card, or a model that runs one attention module as many layers.
        NotImplementedError: a policy that learns, for a model with layers that text passes by.
    """
    if name == "none":
        return None
    if name == "paper":
        return PAPER
    must_name_a_policy(name)
    if name not in NAMES:
        return load_policy(card_file(name))
    starts = {"slope": 1 / math.log(USUAL_LENGTH)} if name == "ssmax" else dict.fromkeys("abc", 0.0)
    layers = attention_layers(model)
    if any(layer.runs > 1 for layer in layers):
        raise ValueError("a model that runs one attention module as many layers cannot learn a policy per layer")
    policies: list[Policy] = []
    for layer, heads in zip(layers, query_heads(model), strict=True):
        device = next(layer.module.parameters()).device
        learned: dict[str, Any] = {
            field: nn.Parameter(torch.full((heads, 1), start, device=device)) for field, start in starts.items()
        }
        for field, parameter in learned.items():
            layer.module.register_parameter(PREFIX + field, parameter)
        policies.append(LengthScaled(**learned) if name == "ssmax" else LogLinear(**learned))
    hidden_from_saving = {name for name, _ in model.named_parameters() if PREFIX in name}
    model._keys_to_ignore_on_save = {*(model._keys_to_ignore_on_save or ()), *hidden_from_saving}
    return PerLayer(tuple(policies))


def must_name_a_policy(name: str | PathLike[str]) -> None:
    """Raise ValueError unless the name is one of `NAMES` or a card that is there."""
    if name in NAMES:
        return
    try:
        card_file(name)
    except FileNotFoundError:
        meant = did_you_mean(str(name), (*NAMES, *SHIPPED))
        raise ValueError(
            f"expected a policy among {', '.join(NAMES)} or the path of a card, got {str(name)!r}{meant}"
        ) from None


def learned_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the policy's parameters on the model."""
    return [parameter for name, parameter in model.named_parameters() if PREFIX in name]


def save_policy(policy: Policy | None, folder: str | PathLike[str]) -> None:
    """Write the policy's card into a model's folder; nothing for plain attention."""
    if policy is not None:
        Card(policy=policy.freeze()).save(Path(folder) / CARD_FILE)


def restore_policy(policy: Policy | None, folder: str | PathLike[str]) -> None:
    """Copy what the card in the folder holds into the policy's own parameters; the numbers come back exactly."""
    if not isinstance(policy, PerLayer):
        return
    saved: Any = load_card(Path(folder) / CARD_FILE).policy
    for ours, theirs in zip(policy.policies, saved.policies, strict=True):
        for field in _trained(ours):
            parameter = getattr(ours, field)
            parameter.data.copy_(torch.tensor(getattr(theirs, field), dtype=torch.float64))


def remove_policy(model: nn.Module) -> None:
    """Take the policy's parameters off the model again; the policy itself keeps them."""
    for module in model.modules():
        for name in [name for name in module._parameters if name.startswith(PREFIX)]:
            del module._parameters[name]


def _trained(policy: Policy) -> Sequence[str]:
    fields = (field.name for field in dataclasses.fields(policy))  # type: ignore[arg-type]
    return [name for name in fields if isinstance(getattr(policy, name), nn.Parameter)]
