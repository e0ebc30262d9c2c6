"""One contract, every implementation: output, statistics and gradients against the float64 reference and PyTorch's.

The cases are those of the PyTorch suite. On a machine with an accelerator the same suite runs there.
"""

import jax
import pytest

from sharpmax.jax import IMPLEMENTATIONS
from sharpmax.jax.chunked import blocks
from tests.attention_cases import CASES
from tests.jax.judging import by_torch, in_jax, judge

BY_NAME = {case.name: case for case in CASES}
PORTABLE = ("chunked", "xla")  # these serve every case, on any device


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Cut even these short rows into several blocks."""
    monkeypatch.setattr(blocks, "WIDEST", 16)


@pytest.fixture(autouse=True, scope="module")
def _quick_compiler():
    """Compile quickly rather than well: each case is one more program, run once."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("implementation", PORTABLE)
def test_contract(implementation, case):
    got = in_jax(case, "float32", implementation=implementation)
    judge(case, "float32", got)
    judge(case, "float32", got, beside=by_torch(case, "float32"))


@pytest.mark.parametrize(
    ("implementation", "dtype", "name"),
    [
        ("chunked", "bfloat16", "causal"),
        ("chunked", "bfloat16", "dead rows"),
        ("chunked", "float64", "huge logits"),
        ("xla", "bfloat16", "causal"),
        ("xla", "float64", "huge logits"),
    ],
)
def test_contract_in_other_dtypes(implementation, dtype, name):
    with jax.enable_x64(dtype == "float64"):
        judge(BY_NAME[name], dtype, in_jax(BY_NAME[name], dtype, implementation=implementation))


def test_the_ladder_is_complete():
    assert set(PORTABLE) <= set(IMPLEMENTATIONS)
