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
    same = {name: _Once.apply(tensor) for name, tensor in given.items()}  # type: ignore[no-untyped-call]
    return replace(request, **same)


class _Once(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.detach()  # not a view, for autograd's own check of changes in place to be the one that speaks

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Last.apply(gradient)  # type: ignore[no-untyped-call]


class _Last(Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        raise NotImplementedError(
            "this implementation of attention has one derivative; implementation='eager' has the second"
        )
