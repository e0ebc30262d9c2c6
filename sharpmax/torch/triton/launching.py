"""Launch a kernel in less host time than Triton's own launch takes.

Triton looks at every argument of every launch, to find which of a kernel's variants to run. On short
sequences that takes longer than the kernel. Here the variant is remembered by what can change it.
So a kernel that is launched this way has

    tensors, strides, other numbers, constants      in this order
    do_not_specialize                               naming all of the other numbers

and its tensors and strides are multiples of 16 (bytes, numbers), as they are but in odd slices, which go Triton's way.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs

from sharpmax.torch.torch_internals import current_stream
from sharpmax.torch.triton.availability import interpreted

KNOWN = triton.__version__.startswith(("3.6.", "3.7.", "3.8."))
"""Whether this is a version of Triton whose compiled kernels take what `launch` hands them past Triton's own runner."""

_variants: dict[tuple[Any, ...], Any] = {}


def launch(
    kernel: Any, grid: tuple[int, int, int], tensors: tuple[Any, ...], strides: tuple[int, ...],
    numbers: tuple[Any, ...], constants: tuple[Any, ...], *, aligned: bool, **options: Any,
) -> None:  # fmt: skip
    """Launch a kernel on a grid; `aligned` tells whether every tensor begins at a multiple of 16 bytes.

    Options are Triton's: num_warps, num_stages and the like.
    """
    arguments = (*tensors, *strides, *numbers, *constants)
    together = 0
    for stride in strides:
        together |= stride
    largest = together
    for number in numbers:
        if number is not None and number > largest:
            largest = number
    if not aligned or together % 16 or largest >= 2**31 or interpreted():
        kernel[grid](*arguments, **options)
        return
    device = torch.cuda.current_device()
    key = (id(kernel), device, *map(dtype_of, tensors), *map(type, numbers), constants, *options.values())
    variant = _variants.get(key)
    if variant is None:
        _variants[key] = kernel[grid](*arguments, **options)
    elif KNOWN and not knobs.runtime.launch_enter_hook.calls:  # a profiler's
        stream = current_stream(device)
        variant.run(*grid, stream, variant.function, variant.packed_metadata, None, None, None, *arguments)
    else:
        variant[grid](*arguments)


def dtype_of(argument: Any) -> torch.dtype | None:
    """Return the dtype of a tensor, or of the tensor that is described to the copy engine in tiles."""
    if isinstance(argument, Tensor):
        return argument.dtype
    return None if argument is None else argument.base.dtype


def begins_aligned(*tensors: Tensor) -> bool:
    """Tell whether tensors that come from outside begin at multiples of 16 bytes; those made here do."""
    address = 0
    for tensor in tensors:
        address |= tensor.data_ptr()
    return address % 16 == 0
