"""Every private call of PyTorch that we make, in one place: what to check against a new version.

Each is a plain alias, or the thinnest function, so that nothing is paid for the indirection.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

sdp_priority_order: Callable[[], list[int]] = torch._C._get_sdp_priority_order
"""Return the order in which `scaled_dot_product_attention` tries its backends, for the whole process."""

set_sdp_priority_order: Callable[[list[int]], None] = torch._C._set_sdp_priority_order


def flash_attention_with_logsumexp_cpu(*tensors: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Attend on a CPU; return the output and the logsumexp."""
    output, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *tensors, 0.0, is_causal, scale=scale
    )
    return output, logsumexp


def efficient_attention_with_logsumexp(*tensors: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Attend on a GPU; return the output and the logsumexp, whose rows may be padded."""
    output, logsumexp, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        *tensors, None, True, 0.0, is_causal, scale=scale
    )
    return output, logsumexp


def causal_flash_attention_varlen(*tensors: Tensor, cumulative: Tensor, longest: int, scale: float) -> Tensor:
    """Attend causally within each document of packed query, key and value (T, heads, width).

    The public `torch.nn.attention.varlen` of PyTorch 2.10 has no scale and no grouped heads, and later ones name their
    arguments otherwise.
    """
    output: Tensor = torch.ops.aten._flash_attention_forward(
        *tensors, cumulative, cumulative, longest, longest, 0.0, True, False, scale=scale
    )[0]
    return output


def function_of(operator: Any) -> Callable[..., Any]:
    """Return the Python function that a custom operator was made of."""
    function: Callable[..., Any] = operator._init_fn
    return function


def current_stream(device: int) -> int:
    """Return the handle of the stream that a GPU's kernels are launched on now."""
    handle: int = torch._C._cuda_getCurrentRawStream(device)
    return handle


def keep_device_busy(cycles: int) -> None:
    """Launch a kernel that does nothing for so many cycles of the GPU."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor has been written; one made in inference mode does not tell."""
    return tensor._version


def is_traced(*arguments: Any) -> bool:
    """Tell whether a mode, a transform, a tracer or a tensor of another kind must see the operator itself."""
    for x in arguments:
        if type(x) not in _UNTRACED and isinstance(x, Tensor):
            return True
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
    )


_UNTRACED = frozenset({Tensor, torch.nn.Parameter, type(None), int, float, bool, str})


def in_forward_mode() -> bool:
    """Tell whether forward-mode derivatives are being taken of anything."""
    return forward_ad._current_level >= 0


def has_tangent(*tensors: Tensor | None) -> bool:
    """Tell whether one of the tensors has a forward-mode derivative."""
    tangents = (forward_ad.unpack_dual(t).tangent for t in tensors if t is not None)  # type: ignore[no-untyped-call]
    return any(tangent is not None for tangent in tangents)


def functional_transforms() -> list[str]:
    """Return the transforms of torch.func at work, by name; inside torch.compile too, whose graph is of these alone."""
    return [level.key().name for level in torch._C._functorch.get_interpreter_stack() or []]


# As `torch.compiler.assume_constant_result` sets it; calling that imports the compiler, which needs a whole Triton.
functional_transforms._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_transformed() -> bool:
    """Tell whether a transform of torch.func is at work, inside torch.compile too."""
    return bool(torch._C._are_functorch_transforms_active())


def recomputing() -> bool:
    """Tell whether this call stands inside a backward pass: gradient checkpointing runs a layer again there."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def is_compiled(model: nn.Module) -> bool:
    """Tell whether a part of the model runs as a compiled graph, where no call can be seen."""
    from torch._dynamo import OptimizedModule  # seconds, unless something has asked for it before

    return any(isinstance(m, OptimizedModule) or m._compiled_call_impl is not None for m in model.modules())


def run_uncompiled(module: nn.Module) -> None:
    """Take back what the module's own `compile` has switched on."""
    module._compiled_call_impl = None


def graphs_compiled() -> int:
    """Return how many graphs torch.compile has made in this process so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def known_number(number: float) -> float:
    """Return a number that torch.compile may have left open, as one of its graph's own constants."""
    from torch.fx.experimental.symbolic_shapes import guard_scalar  # seconds; the compiler has it by then

    known: float = guard_scalar(number)
    return known
