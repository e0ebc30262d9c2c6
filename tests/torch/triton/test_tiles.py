"""Tiles: they fit the GPU they are for."""

import pytest
import torch

from sharpmax.torch.triton import tiles as tiles
from tests.torch.triton import shared_memory
from tests.torch.triton.without_interpreter import printed_by

H200 = 232_448


def test_the_wider_of_query_and_value_decides():
    narrow = tiles._tile_shape("forward under a mask", 64, 256, torch.float16, H200)
    wide = tiles._tile_shape("forward under a mask", 256, 256, torch.float16, H200)
    assert narrow._replace(BD=256) == wide


@pytest.mark.slow
def test_the_hungriest_kernels_fit_smaller_gpus():
    """As the installed Triton compiles them: see `shared_memory`."""
    found = printed_by(shared_memory)
    assert len(found) == 6
    for case, (taken, memory) in found.items():
        assert (8_000 if "solving" in case else 30_000) < taken <= memory, case
