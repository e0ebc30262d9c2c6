"""The seam to the array libraries: whose array this is, and the few things the array API standard leaves out.

Everything in `core` is written against the Python array API (https://data-apis.org/array-api), so one body serves
NumPy, JAX and PyTorch. A few needs lie outside the standard: accumulating in a wider dtype, stopping a gradient,
asking whether a traced value is known, looping until convergence. Their framework-specific lines live here alone.

An array of a framework proves that its framework is imported, so `sys.modules` holds it: core never imports one.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj

Array = Any  # an array of any library that speaks the standard
Namespace = Any


def is_torch_array(value: Any) -> bool:
    """Tell whether it is a PyTorch tensor (in words that torch.compile can trace)."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_jax_array(value: Any) -> bool:
    """Tell whether it is a JAX array, traced or not."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def is_array(value: Any) -> bool:
    """Tell whether it is an array of any library we know."""
    return is_torch_array(value) or bool(is_array_api_obj(value))


def namespace(*arrays: Array) -> Namespace:
    """Return the array API namespace that the arrays share; TypeError when they are of two libraries."""
    if all(is_torch_array(array) for array in arrays):
        import array_api_compat.torch as compatible_torch  # imports torch, which is imported already

        return compatible_torch
    return array_namespace(*arrays)


def floating_array(name: str, value: Array) -> Array:
    """Return `value` if it is an array of real floating dtype, else raise a TypeError that says what came."""
    if not is_array(value):
        raise TypeError(
            f"{name} must be an array (NumPy, JAX, PyTorch, or any that follows the array API), "
            f"got {type(value).__name__}"
        )
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{name} must be a plain array, got a NumPy masked array; give its data, and its mask as where="
        )
    if is_torch_array(value) and (value.layout is not sys.modules["torch"].strided or value.is_nested):
        raise TypeError(f"{name} must be a dense tensor, got one of layout {value.layout}; make it dense first")
    if not is_floating(value):
        raise TypeError(f"{name} must have a real floating dtype, got {value.dtype}; cast them first")
    return value


def is_floating(value: Array) -> bool:
    """Tell whether the dtype is real floating, the half precisions of every library included."""
    if str(value.dtype) == "bfloat16":  # NumPy's isdtype raises on the one of ml_dtypes
        return True
    return bool(namespace(value).isdtype(value.dtype, "real floating"))


def widen(value: Array) -> Array:
    """Cast half precision to float32, and what is wider than float64 to that; those two pass through."""
    xp = namespace(value)
    if value.dtype in (xp.float32, xp.float64):
        return value
    return xp.astype(value, xp.float32 if value.dtype.itemsize < 4 else xp.float64)


def require_same_library(name: str, value: Any, rows: Array) -> None:
    """Raise unless `value` is an array of the rows' library, on their device."""
    if not is_array(value) or namespace(value) is not namespace(rows):
        raise TypeError(f"{name} must be an array of the logits' library, got {type(value).__name__}")
    if is_torch_array(rows) and value.device != rows.device:
        raise ValueError(f"{name} must be on the logits' device {rows.device}, got {value.device}")


def like(value: Any, row: Array) -> Any:
    """Bring a policy's numeric field to the row's library, dtype and device; Python numbers need nothing."""
    if isinstance(value, int | float):
        return value
    if is_torch_array(row) and is_torch_array(value):
        return value.to(device=row.device, dtype=row.dtype)
    if is_torch_array(row) and is_array(value):
        # By NumPy: PyTorch reads the memory of a JAX array as if it had the row's dtype. And a copy: a policy's own
        # array is read-only, which PyTorch warns of.
        value = np.array(value)
    elif is_torch_array(value):  # which others read neither with a gradient, nor in bfloat16, nor off a GPU
        value = to_numpy(value)
    return namespace(row).asarray(value, dtype=row.dtype, device=_device(row))


def clamp(value: Array, low: float | None = None, high: float | None = None) -> Array:
    """Clip to Python bounds in one pass (array-api-compat's own `clip` makes several)."""
    if is_torch_array(value):
        return value.clamp(low, high)
    xp = namespace(value)
    if low is not None:
        value = xp.maximum(value, xp.asarray(low, dtype=value.dtype, device=_device(value)))
    if high is not None:
        value = xp.minimum(value, xp.asarray(high, dtype=value.dtype, device=_device(value)))
    return value


def running_sum(value: Array) -> Array:
    """Sum along the last axis up to each item, itself included (array-api-compat's own does not compile in PyTorch)."""
    if is_torch_array(value):
        return value.cumsum(-1)
    return namespace(value).cumulative_sum(value, axis=-1)


def _device(value: Array) -> Any:
    return None if is_jax_array(value) else device(value)  # a traced JAX array has none; JAX places it with the rest


def stop_gradient(value: Array) -> Array:
    """Return the same values, through which no gradient flows."""
    if is_torch_array(value):
        return value.detach()
    if is_jax_array(value):
        return sys.modules["jax"].lax.stop_gradient(value)
    return value


def to_numpy(value: Array) -> np.ndarray:
    """Return the values in float64 NumPy, from any library, device and floating dtype; no gradient flows through it."""
    if is_torch_array(value):
        value = value.detach().cpu().double()  # NumPy reads neither bfloat16, nor a GPU, nor what has a gradient
    return np.asarray(value).astype(np.float64)


def may_need_gradient(value: Array) -> bool:
    """Tell whether someone may differentiate through `value` (False spares work that only a gradient uses)."""
    if is_torch_array(value):
        torch = sys.modules["torch"]
        # Forward mode does not ask whether gradients are enabled.
        return bool(torch.is_grad_enabled() or torch.autograd.forward_ad._current_level >= 0)
    return is_jax_array(value) and isinstance(value, sys.modules["jax"].core.Tracer)


def is_at_hand(value: Array) -> bool:
    """Tell whether values can be read without waiting for a device: NumPy's, and PyTorch's on a CPU, untraced."""
    if is_torch_array(value):
        return value.device.type == "cpu" and not sys.modules["torch"].compiler.is_compiling()
    return not is_jax_array(value)


def may_hold_nan(value: Array) -> bool:
    """Tell whether some value may be NaN or inf; False where the values are not at hand."""
    if not is_at_hand(value):
        return False
    xp = namespace(value)
    # One pass over a tensor: a sum is finite only if all of it is. NumPy would warn of a sum that is not.
    finite = xp.isfinite(xp.sum(value)) if is_torch_array(value) else xp.all(xp.isfinite(value))
    return truth(finite) is False


def truth(condition: Array) -> bool | None:
    """Return a boolean scalar's value, or None where it is not known yet: under jit, vmap or torch.compile."""
    if is_torch_array(condition) and sys.modules["torch"].compiler.is_compiling():
        return None
    try:
        return bool(condition)
    except (TypeError, RuntimeError):  # JAX's and PyTorch's words for "this is a traced value"
        return None


def iterate(step: Callable[[tuple], tuple], state: tuple, done: Callable[[tuple], Array], limit: int) -> tuple:
    """Apply `step` until `done(state)` holds or `limit` steps are made.

    Stops early: by a Python `break` on known values, by a loop of the framework's own under JAX's trace and
    torch.compile's (but unrolled under torch.func inside torch.compile). No gradient flows through the loop.
    """
    finished = done(state)
    if is_jax_array(finished) and truth(finished) is None:
        xp, lax = namespace(finished), sys.modules["jax"].lax

        def unfinished(carry: tuple) -> Array:
            count, current = carry
            return xp.logical_and(count < limit, xp.logical_not(done(current)))

        _, state = lax.while_loop(unfinished, lambda carry: (carry[0] + 1, step(carry[1])), (0, state))
        return state
    if is_torch_array(finished) and _loops_in_graph(sys.modules["torch"]):
        return _iterate_in_graph(step, state, done, limit)
    for _ in range(limit):
        if truth(finished):
            break
        state = step(state)
        finished = done(state)
    return state


def _loops_in_graph(torch: Any) -> bool:
    return torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()


def _iterate_in_graph(
    step: Callable[[tuple], tuple], state: tuple, done: Callable[[tuple], Array], limit: int
) -> tuple:
    """Iterate as one node of the graph that torch.compile makes: unrolled, 48 steps take it a minute."""
    torch = sys.modules["torch"]
    while_loop = torch._higher_order_ops.while_loop  # PyTorch has no public name for it yet

    def unfinished(count: Array, *current: Array) -> Array:
        return torch.logical_and(count < limit, torch.logical_not(done(current)))

    def onward(count: Array, *current: Array) -> tuple:
        return count + 1, *(item.clone() for item in step(current))  # what a step passes on unchanged must not alias

    with torch.no_grad():
        count = torch.zeros((), dtype=torch.int64, device=state[0].device)
        _, *found = while_loop(unfinished, onward, (count, *(item.detach().clone() for item in state)))
    return tuple(found)
