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
from torch import Tensor

from sharpmax.torch.triton.availability import interpreted

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
    largest = max([together, *(number for number in numbers if number is not None)])
    if not aligned or together % 16 or largest >= 2**31 or interpreted():
        kernel[grid](*arguments, **options)
        return
    dtypes = tuple([getattr(x, "dtype", None) for x in tensors])  # of a description of tiles, its tensor's beside it
    kinds = tuple(map(type, numbers))
    key = (kernel, torch.cuda.current_device(), dtypes, kinds, constants, *options.values())
    variant = _variants.get(key)
    if variant is None:
        _variants[key] = kernel[grid](*arguments, **options)
    else:
        variant[grid](*arguments)


def begins_aligned(*tensors: Tensor) -> bool:
    """Tell whether tensors that come from outside begin at multiples of 16 bytes; those made here do."""
    address = 0
    for tensor in tensors:
        address |= tensor.data_ptr()
    return address % 16 == 0
