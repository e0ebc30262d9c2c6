"""Settings that several of the JAX tests share."""

import jax
import pytest

from sharpmax.jax import dispatch, stock
from sharpmax.jax.chunked import blocks
from sharpmax.jax.pallas import passes

ON_GPU = jax.default_backend() == "gpu"


@pytest.fixture
def double():
    """Compare in float64, where nothing but a fault is as large as the tolerance."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def small_blocks(monkeypatch):
    """Cut even short rows into several blocks."""
    monkeypatch.setattr(blocks, "WIDEST", 16)


@pytest.fixture
def quick_compiler():
    """Compile quickly rather than well: for programs that run once."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def interpreted(monkeypatch):
    """Run our kernels with small tiles, so that short rows take several; on a GPU compiled, elsewhere interpreted."""
    for name, setting in (("INTERPRET", not ON_GPU), ("BLOCK_Q", 16), ("BLOCK_K", 16)):
        monkeypatch.setattr(passes, name, setting)
    monkeypatch.setattr(dispatch, "LOWERING", "triton")
    monkeypatch.setattr(stock, "KERNEL", "cudnn" if ON_GPU else "xla")  # the algebra around cuDNN, without it
