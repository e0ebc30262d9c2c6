"""Where a model attends: its attention modules in model order, and whether each can be sharpened.

A transformers module attends through the attention interface if its `forward` asks for it; `nn.MultiheadAttention` and
our own `Attention` slot are known by type. Whatever else attends cannot be reached, and is refused by name.

A layer's index, as in `PerLayer` and in every report, is its place in this list: for an encoder-decoder the encoder's
layers come first, then the decoder's own and cross attention as they stand in each block. A model that runs one module
many times (ALBERT) has as many layers as it runs.
"""

import inspect
import sys
from dataclasses import dataclass
from typing import Any

from torch import nn

from sharpmax.extras import extra
from sharpmax.hf.sharpen.modules import Attention
from sharpmax.torch.watching.slot import Watchable

with extra("hf"):
    from transformers import PreTrainedModel

INTERFACE = "ALL_ATTENTION_FUNCTIONS"

BYPASSING = {
    "attends by blocks of its own": (
        "LongT5LocalAttention LongT5TransientGlobalAttention PegasusXGlobalLocalAttention BigBirdPegasusSelfAttention "
        "BigBirdPegasusBlockSparseAttention Gemma3nAudioAttention Gemma4AudioAttention"
    ),
    "keeps only some of its queries": "InformerProbSparseAttention",
    "adds positions to the logits itself": (
        "SamVisionAttention SamHQVisionAttention DeepseekOcr2SamVisionAttention UnlimitedOcrSamVisionAttention "
        "PPFormulaNetVisionAttention"
    ),
    "computes its softmax itself": (
        "GitSelfAttention ClapAudioSelfAttention EvollaSequenceCompressorAttention ChameleonVQVAEEncoderAttnBlock "
        "JanusVQVAEAttnBlock DetrMHAttentionMap ConditionalDetrMHAttentionMap MaskFormerDetrMHAttentionMap"
    ),
    "calls PyTorch's attention itself": "Aimv2AttentionPoolingHead",
}
"""Attention that passes the interface by, in models whose other attention asks it: such a model would be sharpened in
part and in silence. Deformable attention is not among them: it has no logits of keys to sharpen."""


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """One attention module: its name, itself, the index of its first layer, and how many layers it runs as."""

    name: str
    module: nn.Module
    index: int
    runs: int


def attention_layers(model: nn.Module) -> list[AttentionLayer]:
    """Return the attention modules of a model, in model order.

    Raises:
        TypeError: something else for a model.
        NotImplementedError: part of the model attends in a way that cannot be reached; the message names it.

    >>> [layer.name for layer in attention_layers(model)]  # doctest: +SKIP
    """
    check_module(model)
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and not part._can_set_attn_implementation():
            raise NotImplementedError(
                f"{type(part).__name__} computes attention inside its own code and bypasses transformers' attention "
                "interface, so it cannot be sharpened; nothing was changed. Families that can are in "
                "docs/reference/families.md; in code of your own, attend through sharpmax.hf.Attention"
            )
    for name, module in model.named_modules():
        _refuse_out_of_reach(name, module)
    found = [(name, module) for name, module in model.named_modules() if is_attention(module)]
    if not found:
        raise NotImplementedError(
            f"{type(model).__name__} has no attention that can be reached: none of its modules goes through "
            "transformers' attention interface, nn.MultiheadAttention or sharpmax.hf.Attention; in code of your own, "
            "attend through the last"
        )
    runs = _runs_of_a_shared_module(model) if len(found) == 1 else 1
    return [AttentionLayer(name, module, index, runs) for index, (name, module) in enumerate(found)]


def check_module(model: Any) -> None:
    """Raise TypeError unless it is a torch module, not a class of one."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch module, got {type(model).__name__}")


def layer_count(layers: list[AttentionLayer]) -> int:
    """Return how many layers a policy per layer has to cover."""
    return sum(layer.runs for layer in layers)


def is_attention(module: nn.Module) -> bool:
    """Tell whether the module attends in a way that can be sharpened."""
    return isinstance(module, nn.MultiheadAttention | Attention) or _asks_the_interface(type(module))


def configs_of(model: nn.Module) -> list[Any]:
    """Return every distinct config that a module of the model may ask for its attention implementation."""
    found: dict[int, Any] = {}
    waiting = [getattr(module, "config", None) for module in model.modules()]
    while waiting:
        config = waiting.pop()
        if hasattr(config, "_attn_implementation_internal") and id(config) not in found:
            found[id(config)] = config
            waiting += [getattr(config, name, None) for name in getattr(config, "sub_configs", ())]
    return list(found.values())


def attends_eagerly_only(model: nn.Module) -> set[int]:
    """Return the ids of the configs whose modules transformers runs by eager attention alone.

    Such a model always makes a whole mask, and its modules' `is_causal` may say anything: nothing reads it. A config
    that serves two parts is of this kind if either part is.
    """
    found: set[int] = set()

    def walk(module: nn.Module, owner: type[PreTrainedModel] | None) -> None:
        owner = type(module) if isinstance(module, PreTrainedModel) else owner
        config = getattr(module, "config", None)
        kind = owner or _family_of(module)
        if config is not None and kind is not None and not (kind._supports_sdpa or kind._supports_flash_attn):
            found.add(id(config))
        for child in module.children():
            walk(child, owner)

    walk(model, None)
    return found


def _family_of(module: nn.Module) -> type[PreTrainedModel] | None:
    """Return a model class of the file that defines a module: whose part it is, where only the part is at hand."""
    defined = vars(sys.modules[type(module).__module__]).values()
    kinds = [kind for kind in defined if isinstance(kind, type) and issubclass(kind, PreTrainedModel)]
    return next((kind for kind in kinds if kind.__module__ == type(module).__module__), None)


def _refuse_out_of_reach(name: str, module: nn.Module) -> None:
    """Raise NotImplementedError for a module whose attention would stay plain, or would be replaced by another."""
    kind = type(module)
    if isinstance(module, Watchable):
        raise NotImplementedError(
            f"{name or 'the model'} is a {kind.__name__}, which can be watched and not sharpened; nothing was changed. "
            "Attend through sharpmax.hf.Attention in its place, which can be both"
        )
    if isinstance(module, nn.MultiheadAttention) and kind.forward is not nn.MultiheadAttention.forward:
        raise NotImplementedError(
            f"{name or 'the model'} is a {kind.__name__}, an nn.MultiheadAttention with a forward of its own, which "
            "sharpening would replace; nothing was changed. Attend through sharpmax.hf.Attention in it instead"
        )
    named = {parent.__name__ for parent in kind.__mro__}
    why = next((why for why, names in BYPASSING.items() if named.intersection(names.split())), None)
    if why is not None and not is_attention(module):
        raise NotImplementedError(
            f"{name} is a {kind.__name__}, which {why} and bypasses transformers' attention interface, so this model "
            "would be sharpened in part; nothing was changed. Sharpen a part without it instead: sharpen(model.part, …)"
        )


_asking: dict[type, bool] = {}


def _asks_the_interface(kind: type) -> bool:
    if kind not in _asking:
        try:
            _asking[kind] = INTERFACE in inspect.getsource(inspect.unwrap(kind.forward))  # type: ignore[attr-defined]
        except (OSError, TypeError, AttributeError):
            _asking[kind] = False
    return _asking[kind]


def _runs_of_a_shared_module(model: nn.Module) -> int:
    depths = [getattr(config, "num_hidden_layers", 1) for config in configs_of(model)]
    groups = [getattr(config, "num_hidden_groups", None) for config in configs_of(model)]
    return int(max(depths)) if any(groups) else 1
