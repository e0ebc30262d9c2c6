"""Apply a context extension to a model's rotary positions, and know which models it cannot be applied to.

Frequencies are transformers' own (`ROPE_INIT_FUNCTIONS`). They are applied in one of two ways:

- **early**, as the model does it: keys are cached turned. For frequencies that are the same at every length (YaRN).
- **late**: keys are cached as they are, and queries and keys are turned where they meet, in our attention. For dynamic
  NTK, where all keys of a row are read at the frequencies of its present length, cached ones too, and for Self-Extend,
  where a key is read at two positions. transformers' own dynamic NTK leaves cached keys at the frequencies of the
  length at which they came, so that a row's keys disagree.

A cache that was filled in the block belongs to the block: outside it its keys mean something else.
"""

import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sharpmax.core.extension import DynamicNTK, Extension, SelfExtend, Unscaled, Yarn
from sharpmax.extras import extra
from sharpmax.hf.sharpen.late_rotation import LateRotation
from sharpmax.hf.sharpen.length_temperature import own_temperature

with extra("hf"):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


class Rotary(NamedTuple):
    """The one module of a model that makes rotary positions, the module that calls it, and the model's config."""

    module: Any
    owner: nn.Module
    config: Any


@dataclass(eq=False)
class Applied:
    """An extension on its way into a model: what the rotary module does meanwhile, and what attention does, if any."""

    extension: Extension
    rotary: Rotary | None = None
    forward: Any = None
    late: LateRotation | None = None
    modules: list[nn.Module] = field(default_factory=list)  # that attend with late rotation


def apply_extension(model: nn.Module, extension: Extension, attending: list[nn.Module]) -> Applied:
    """Return what is to be put into the model; nothing is changed here.

    Raises:
        NotImplementedError: a model without rotary positions, with a scaling of its own, or of a kind that late
            rotation cannot serve; the message names it.
        ValueError: an extension of another context than the model's.
    """
    rotary = rotary_of(model)
    trained = int(rotary.config.max_position_embeddings)
    if trained != extension.trained:
        raise ValueError(
            f"the extension begins at {extension.trained} trained tokens, and {type(model).__name__} has {trained}; "
            "fit a card to this model, or say trained=" + str(trained)
        )
    if isinstance(extension, Unscaled):
        return Applied(extension, rotary)
    if isinstance(extension, Yarn):
        frequencies, scaling = frequencies_of(extension, rotary)
        _must_be_alike(model, rotary, frequencies)
        return Applied(extension, rotary, twin_of(rotary.module, frequencies, scaling).forward)
    return _applied_late(model, extension, rotary, attending)


def _applied_late(model: nn.Module, extension: Extension, rotary: Rotary, attending: list[nn.Module]) -> Applied:
    assert isinstance(extension, DynamicNTK | SelfExtend)
    if elsewhere := [module for module in attending if getattr(module, "config", None) is not rotary.config]:
        raise NotImplementedError(
            f"{type(model).__name__} also attends in {type(elsewhere[0]).__name__}, which has other positions than its "
            f"text; {type(extension).__name__} cannot tell them apart: extend it by Yarn, or sharpen the text model"
        )
    still = twin_of(rotary.module, torch.zeros_like(rotary.module.inv_freq), 1.0)
    late = LateRotation(extension, rotary, frequencies_of)
    if isinstance(extension, DynamicNTK):
        _must_be_alike(model, rotary, late.frequencies(extension.trained))
        if not torch.allclose(late.frequencies(extension.trained), rotary.module.inv_freq.to("cpu"), rtol=1e-5):
            raise NotImplementedError(
                f"the rotary positions of {type(model).__name__} are not computed as transformers' own are, so dynamic "
                "NTK would change short inputs; extend it by Yarn or SelfExtend"
            )
    return Applied(extension, rotary, still.forward, late, attending)


def rotary_of(model: nn.Module) -> Rotary:
    """Return the module that makes a model's rotary positions, or raise NotImplementedError where there is not one."""
    name = type(model).__name__
    found = {
        id(module): (module, owner)
        for owner in model.modules()
        for module in owner.children()
        if any(buffer.endswith("inv_freq") for buffer in module._buffers)
    }
    if not found:
        raise NotImplementedError(
            f"{name} has no rotary positions (RoPE), so no scaling of them can extend its context; nothing was changed"
        )
    (module, owner), *others = found.values()
    config = getattr(module, "config", None)
    kind = getattr(module, "rope_type", None)
    if others or config is None or "inv_freq" not in module._buffers or not isinstance(kind, str):
        raise NotImplementedError(
            f"{name} has rotary positions of several kinds, or makes them in a way of its own "
            f"({type(module).__name__}), so its context cannot be extended here; nothing was changed"
        )
    parameters = getattr(config, "rope_parameters", None) or {}
    own = own_temperature(config) or (f"rope_type {kind}" if kind != "default" else None)
    own = own or ("mrope_section" if "mrope_section" in parameters else None)
    if own is not None:
        raise NotImplementedError(
            f"{name} has a scaling of its own ({own}): a second one on top would break its positions; nothing was "
            "changed. Use its own, or load it without"
        )
    return Rotary(module, owner, config)


def frequencies_of(extension: Extension, rotary: Rotary, length: int | None = None) -> tuple[Tensor, float]:
    """Return transformers' inverse frequencies (pairs,) of an extension, and what cosine and sine are scaled by."""
    config = copy.deepcopy(rotary.config)
    parameters = {**config.rope_parameters, "factor": float(extension.factor)}
    if isinstance(extension, Yarn):
        parameters |= {"rope_type": "yarn", "original_max_position_embeddings": extension.trained}
        parameters |= {} if extension.temperature else {"attention_factor": 1.0}
    else:
        parameters |= {"rope_type": "dynamic"}
    config.rope_parameters = parameters
    if getattr(config, "head_dim", None) is None:
        config.head_dim = config.hidden_size // config.num_attention_heads
    frequencies, scaling = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"), seq_len=length)
    return frequencies, float(scaling)


def twin_of(rotary: Any, frequencies: Tensor, scaling: float) -> Any:
    """Return a copy of a rotary module with other frequencies; the module itself is not touched."""
    twin = copy.copy(rotary)
    twin.__dict__ = {name: value for name, value in rotary.__dict__.items() if name != "forward"}
    twin._buffers = {**rotary._buffers, "inv_freq": frequencies.to(rotary.inv_freq.device)}
    twin.rope_type, twin.attention_scaling = "default", scaling
    return twin


def _must_be_alike(model: nn.Module, rotary: Rotary, frequencies: Tensor) -> None:
    if frequencies.shape != rotary.module.inv_freq.shape:
        raise NotImplementedError(
            f"{type(model).__name__} turns {rotary.module.inv_freq.numel()} pairs of each head, and transformers' "
            f"scaling is for {frequencies.numel()}; its context cannot be extended here"
        )


PROBED = 8  # tokens that tell whether a model can be turned late
AGREEING = 1e-3, 8.0  # of the largest hidden value: at least this, and so many roundings of the weights' precision

_proved: "WeakKeyDictionary[nn.Module, bool]" = WeakKeyDictionary()


def must_turn_late(applied: Applied, switched: Any) -> None:
    """Raise NotImplementedError unless turning late, at the model's own frequencies, leaves the model as it is.

    Some models norm or gate between their rotation and their attention: there it is not the same. A few tokens at far
    positions tell, once per model. `switched(late)` is a block in which the model is turned late.
    """
    assert applied.rotary is not None
    assert applied.late is not None
    owner = applied.rotary.owner
    if owner not in _proved:
        modes = [(module, module.training) for module in owner.modules()]
        weight = next(owner.parameters())
        place, agreeing = weight.device, max(AGREEING[0], AGREEING[1] * torch.finfo(weight.dtype).eps)
        ids = torch.arange(PROBED, device=place)[None]
        positions = ids * max(1, (applied.extension.trained - 1) // PROBED)

        def hidden() -> Tensor:
            # With a mask, gaps between positions are no ends of packed texts.
            told = {"input_ids": ids, "position_ids": positions, "attention_mask": torch.ones_like(ids)}
            return owner(**told, use_cache=False).last_hidden_state.float()  # type: ignore[no-any-return]

        try:
            owner.eval()
            with torch.no_grad():
                before = hidden()
                with switched(applied.late.at_own_frequencies()):
                    after = hidden()
        finally:
            for module, mode in modes:
                module.training = mode
        _proved[owner] = bool((before - after).abs().max() <= agreeing * before.abs().max())
    if not _proved[owner]:
        raise NotImplementedError(
            f"{type(owner).__name__} does more between its rotation and its attention than rotate, so "
            f"{type(applied.extension).__name__} cannot read its keys at other positions; extend it by Yarn"
        )
