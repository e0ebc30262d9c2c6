"""One contract, every implementation: output, statistics and gradients against the float64 reference and PyTorch's.

The cases are those of the PyTorch suite, and each test says which implementation must serve which case in which dtype.
What an implementation refuses is tested once. On a machine with a GPU the same suite runs there.
"""

import jax
import pytest

from sharpmax.jax import IMPLEMENTATIONS
from tests.attention_cases import CASES
from tests.jax.judging import by_torch, in_jax, judge

BY_NAME = {case.name: case for case in CASES}

# Each argument and each kind of policy once: the rest is slow.
EVERY_ARGUMENT = (
    "grouped",
    "one query",
    "values wider than keys",
    "window to both sides",
    "padding",
    "masking bias",
    "everything",
    "sinks and dead rows",
    "entropy target of what is seen",
    "position",
    "a policy per head",
)
FAST = {
    *(("chunked", name, "float32") for name in EVERY_ARGUMENT),
    *(("xla", name, "float32") for name in ("grouped", "everything", "entropy target of what is seen", "position")),
    ("chunked", "dead rows", "bfloat16"),
    ("chunked", "huge logits", "float64"),
    ("xla", "causal", "bfloat16"),
    ("pallas", "grouped", "bfloat16"),
    ("pallas", "window to both sides", "bfloat16"),
    ("pallas", "log-linear", "bfloat16"),
    ("pallas", "entropy target", "bfloat16"),
    ("hybrid", "retrieval", "bfloat16"),
}
SLOW = {
    *((implementation, case.name, "float32") for implementation in ("chunked", "xla") for case in CASES),
    ("chunked", "causal", "bfloat16"),
    ("xla", "huge logits", "float64"),
    ("pallas", "more queries than keys", "bfloat16"),
    ("pallas", "a policy per head", "bfloat16"),
    ("pallas", "entropy target, long rows", "bfloat16"),
} - FAST
SERVED = [*sorted(FAST), *(pytest.param(*triple, marks=pytest.mark.slow) for triple in sorted(SLOW))]

REFUSED = [
    ("stock", "retrieval", "bfloat16", "beyond the error budget"),
    ("hybrid", "causal", "bfloat16", "even lengths"),
    ("hybrid", "window", "bfloat16", "window is not honoured"),
    ("hybrid", "fewer queries than keys", "bfloat16", "first key"),
    ("pallas", "odd width", "bfloat16", "widths must be of"),
    ("pallas", "padding", "bfloat16", "mask is not honoured"),
    ("pallas", "bias", "bfloat16", "bias is not honoured"),
    ("pallas", "softcap", "bfloat16", "softcap is not honoured"),
    ("pallas", "sinks", "bfloat16", "sinks is not honoured"),
    ("hybrid", "entropy target, long rows", "bfloat16", "solved for"),
    ("pallas", "causal", "float32", "half precision"),
]

pytestmark = pytest.mark.usefixtures("small_blocks", "quick_compiler", "interpreted")


@pytest.mark.parametrize(("implementation", "name", "dtype"), SERVED)
def test_contract(implementation, name, dtype):
    case = BY_NAME[name]
    with jax.enable_x64(dtype == "float64"):
        got = in_jax(case, dtype, implementation=implementation)
    judge(case, dtype, got)
    if dtype == "float32":
        judge(case, dtype, got, beside=by_torch(case, dtype))


@pytest.mark.parametrize(("implementation", "name", "dtype", "reason"), REFUSED)
def test_what_is_refused_says_why(implementation, name, dtype, reason):
    with pytest.raises(NotImplementedError, match=reason):
        in_jax(BY_NAME[name], dtype, implementation=implementation)


def test_every_implementation_serves_or_is_tested_alone():
    assert {implementation for implementation, *_ in FAST} == set(IMPLEMENTATIONS) - {"stock"}  # test_stock.py
