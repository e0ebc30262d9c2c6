"""Call a custom operator's own function where no tracer needs the operator.

`torch.library` makes an operator known to tracing, and takes the host longer for a call than a small function itself,
which is felt where sequences are short. A tracer needs that; a plain call does not: it runs the function itself, and
where a gradient is due, as an `autograd.Function` of the same two halves that the operator was registered with.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from sharpmax.torch.torch_internals import function_of, is_traced

Keep = Callable[[Any, tuple[Any, ...], Any], None]
"""(ctx, inputs, output): keeps what the gradient needs, as `register_autograd`'s `setup_context`."""


def untraced(
    operator: Any, *, keep: Keep | None = None, backward: Callable[..., Any] | None = None,
    alone: Callable[..., Any] | None = None,
) -> Any:  # fmt: skip
    """Return a function that calls the operator under a tracer, and what the operator stands for otherwise.

    That is the function it was made of, or `alone`, which need not lay out its result as tracing expects it. It is the
    attribute `alone` of what is returned, for a caller who knows that nobody traces and no gradient is due.
    `keep` and `backward` are registered as its gradient. Without them the operator is itself a gradient, or is not
    differentiated, and refuses to be.
    """
    compute = alone or function_of(operator)
    differentiable = _function(compute, keep, backward) if keep and backward else None
    if differentiable is None:
        differentiable_once(operator)
    else:
        operator.register_autograd(backward, setup_context=keep)

    def call(*arguments: Any) -> Any:
        if torch.compiler.is_compiling() or is_traced(*arguments):
            return operator(*arguments)
        with device_of(arguments):
            if not _needs_gradient(arguments):
                return compute(*arguments)
            return operator(*arguments) if differentiable is None else differentiable.apply(*arguments)

    call.alone = compute  # type: ignore[attr-defined]
    return call


def differentiable_once(operator: Any) -> None:
    """Make an operator that is a gradient refuse to be differentiated in turn, in words that help."""
    operator.register_autograd(refuse)


def refuse(_: Any, *__: Any) -> Any:
    """Stand for the gradient of a gradient that nobody has."""
    raise NotImplementedError(
        "this implementation of attention has one derivative; implementation='eager' has the second"
    )


def _function(compute: Callable[..., Any], keep: Keep, backward: Callable[..., Any]) -> Any:
    class Differentiable(Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            output = compute(*arguments)
            keep(ctx, arguments, output)
            return output

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return backward(ctx, *gradients)

    return Differentiable


def device_of(arguments: tuple[Any, ...]) -> AbstractContextManager[Any]:
    """Make the tensors' GPU the current one, on which kernels are launched and events recorded."""
    device = next((x.device for x in arguments if isinstance(x, Tensor)), None)
    if device is None or device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def _needs_gradient(arguments: tuple[Any, ...]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in arguments)
