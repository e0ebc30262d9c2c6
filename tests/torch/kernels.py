"""Where our Triton kernels run: on a GPU if there is one, else on the CPU as Python; and what needs them."""

import pytest
import torch

from sharpmax.torch import IMPLEMENTATIONS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KERNELS = [name for name in ("triton", "hybrid") if name in IMPLEMENTATIONS]
PRECISE = {"triton": torch.float32, "hybrid": torch.float16}
"""The most that each kernel computes in."""

needs_triton = pytest.mark.skipif(not KERNELS, reason="Triton is not installed")


def device_of(implementation):
    """Return where an implementation runs."""
    return DEVICE if implementation in KERNELS else "cpu"
