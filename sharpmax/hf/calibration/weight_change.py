"""Put changed weights into a model, for a block or for good: a change may hold what is trained and pass its gradient.

    query rows of head h      W_q[h] -> beta_h · W_q[h]        the same as a temperature of its own (HeadScale)
    output columns            W_o[:, i] -> W_o[:, i] · s_i     the same as scaling what comes out of heads (SEAL)
    a low rank                W -> W + B·A                     LoRA

Each is merged by nature: the model runs as it is, at no cost at inference. The originals are kept, so that afterwards
every weight is the very tensor that it was.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from sharpmax.hf.sharpen.layers import attention_layers

Weights = dict[tuple[nn.Module, str], Tensor]
"""Tensors by the module that holds them and their name there."""

QUERY, KEY, OUTPUT = ("q_proj",), ("k_proj",), ("o_proj", "out_proj")
"""What the projections of an attention module are called."""


@dataclass(frozen=True)
class Projections:
    """The linear layers of one attention module."""

    query: nn.Linear
    key: nn.Linear
    output: nn.Linear

    @classmethod
    def of_model(cls, model: nn.Module) -> "list[Projections]":
        """Return those of every layer, in the order of `attention_layers`.

        Raises:
            NotImplementedError: an attention module without linear projections of its own, or that runs as many layers.
        """
        found = []
        for layer in attention_layers(model):
            if layer.runs > 1:
                raise NotImplementedError(f"{layer.name} serves {layer.runs} layers, which would share their numbers")
            query, key, output = (_linear(layer.name, layer.module, names) for names in (QUERY, KEY, OUTPUT))
            found.append(cls(query, key, output))
        return found


def _linear(name: str, module: Any, names: tuple[str, ...]) -> nn.Linear:
    found = next((getattr(module, each) for each in names if hasattr(module, each)), None)
    if not isinstance(found, nn.Linear) or not found.weight.is_floating_point():
        raise NotImplementedError(
            f"{name} ({type(module).__name__}) has no linear {' or '.join(names)} with weights of its own, so nothing "
            "can be merged into it; fit a card, which changes no weight: method learn"
        )
    return found


@contextmanager
def weights_replaced(weights: Mapping[tuple[nn.Module, str], Tensor]) -> Iterator[None]:
    """Run a block with these tensors in place of the model's parameters; the very same parameters come back after it.

    The tensors need not be leaves: what they were computed from gets its gradient.
    """
    kept = {(module, name): module._parameters[name] for module, name in weights}
    try:
        for (module, name), tensor in weights.items():
            module._parameters[name] = tensor  # type: ignore[assignment]  # as torch.func.functional_call does
        yield
    finally:
        for (module, name), parameter in kept.items():
            module._parameters[name] = parameter


class Merged:
    """A model with changed weights, until the block ends or `restore()`; `save_pretrained` saves the changed ones."""

    def __init__(self, weights: Mapping[tuple[nn.Module, str], Tensor]) -> None:
        self._kept = {(module, name): module._parameters[name] for module, name in weights}
        for (module, name), tensor in weights.items():
            before = self._kept[module, name]
            asks = before is not None and before.requires_grad
            module._parameters[name] = nn.Parameter(tensor.detach().clone(), requires_grad=asks)

    def restore(self) -> None:
        """Put the original parameters back: the very same tensors. Harmless the second time."""
        while self._kept:
            (module, name), parameter = self._kept.popitem()
            module._parameters[name] = parameter

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()


def current(weights: Weights, module: nn.Module, name: str) -> Tensor | None:
    """Return a weight as changed so far, or as the module has it."""
    return weights.get((module, name), module._parameters.get(name))


def scale_queries(weights: Weights, sides: Projections, scale: Tensor) -> None:
    """Scale the rows of each head's query projection, and its bias: (heads,)."""
    rows = scale.repeat_interleave(sides.query.out_features // len(scale))
    for name in ("weight", "bias"):
        tensor = current(weights, sides.query, name)
        if tensor is not None:
            of = rows if tensor.ndim == 1 else rows[:, None]
            weights[sides.query, name] = (tensor * of).to(tensor.dtype)


def scale_outputs(weights: Weights, sides: Projections, scale: Tensor) -> None:
    """Scale what comes out of heads, (heads,) or (heads, width of a head), in the columns of the output projection."""
    flat = scale.reshape(-1)
    columns = flat.repeat_interleave(sides.output.in_features // len(flat))
    weight = current(weights, sides.output, "weight")
    assert weight is not None
    weights[sides.output, "weight"] = (weight * columns).to(weight.dtype)


def add_low_rank(weights: Weights, layer: nn.Linear, down: Tensor, up: Tensor) -> None:
    """Add up (out, rank) times down (rank, in)."""
    weight = current(weights, layer, "weight")
    assert weight is not None
    weights[layer, "weight"] = (weight + torch.mm(up.float(), down.float())).to(weight.dtype)
