"""Differentiate once, and say so: a second derivative of PyTorch's fast kernels is refused."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from sharpmax.torch.torch_internals import is_traced
from sharpmax.torch.tracing import refuse


def once(tensor: Tensor) -> Tensor:
    """Return the same tensor, whose gradient raises NotImplementedError when it is differentiated in turn."""
    if not (tensor.requires_grad and torch.is_grad_enabled()) or torch.compiler.is_compiling() or is_traced(tensor):
        return tensor
    same: Tensor = _Once.apply(tensor)  # type: ignore[no-untyped-call]
    return same


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
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return refuse(ctx, gradient)
