"""Differentiate once, and say so: a second derivative of our operators, or of PyTorch's fast kernels, is refused."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from sharpmax.torch.request import Request
from sharpmax.torch.torch_internals import is_traced

LEARNING = ("query", "key", "value", "bias", "sinks")


def differentiable_once(request: Request) -> Request:
    """Return the same request, whose gradients raise NotImplementedError when they are differentiated in turn."""
    given = {name: tensor for name in LEARNING if (tensor := getattr(request, name)) is not None}
    if not request.needs_gradient or torch.compiler.is_compiling() or is_traced(*given.values()):
        return request
    same = _Once.apply(*given.values())  # type: ignore[no-untyped-call]
    return replace(request, **dict(zip(given, same, strict=True)))


class _Once(Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return _Last.apply(*gradients)  # type: ignore[no-untyped-call]


class _Last(Function):
    @staticmethod
    def forward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return tuple(None if gradient is None else gradient.view_as(gradient) for gradient in gradients)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(
            "this implementation of attention has one derivative; implementation='eager' has the second"
        )
