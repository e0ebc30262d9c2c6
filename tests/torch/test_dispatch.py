"""Which implementation serves a call, and what one that is named and cannot says."""

import os
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from sharpmax import EntropyTarget
from sharpmax.torch import IMPLEMENTATIONS, attention, which_implementation
from tests.torch.test_api import qkv


def test_the_ladder_tells_which_runs_and_why():
    q, k, v = qkv(dtype=torch.float32)
    assert which_implementation(q, k, v).implementation == "stock"
    capped = which_implementation(q, k, v, softcap=10.0)
    assert capped.implementation == "chunked"
    assert "softcap" in capped.refused["stock"]
    dropped = which_implementation(q, k, v, dropout=0.1)
    assert dropped.implementation == "eager"
    assert "dropout" in dropped.refused["chunked"]
    assert which_implementation(q, k, v, implementation="eager").implementation == "eager"


@pytest.mark.skipif("CI" not in os.environ, reason="elsewhere Triton may be missing, and its tests are skipped")
def test_the_kernels_are_there_where_ci_tests_them():
    assert {"hybrid", "triton"} <= set(IMPLEMENTATIONS)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("sys.modules['triton'] = None", "Triton is not installed"),
        ("import types; sys.modules['triton'] = types.ModuleType('')", "Triton is not installed"),  # a mere folder
        ("import triton; triton.__version__ = '3.5.1'", "it needs Triton 3.6 or later, found 3.5.1"),
    ],
)
def test_without_a_triton_that_runs_the_kernels_the_others_serve_and_say_so(setting, why):
    if "import triton" in setting:
        pytest.importorskip("triton")
    code = f"""
import sys
{setting}
import torch
from sharpmax.torch import IMPLEMENTATIONS, attention, attention_varlen, which_implementation
x = torch.randn(1, 2, 4, 8)
print(*IMPLEMENTATIONS, attention(x, x, x).shape == x.shape)
print(*which_implementation(x, x, x).refused.items())
for named in ("hybrid", "triton"):
    for call in (lambda: attention(x, x, x, implementation=named),
                 lambda: attention_varlen(*x.repeat(3, 1, 1, 1), torch.tensor([0, 4]), implementation=named)):
        try:
            call()
        except NotImplementedError as error:
            print(error)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.splitlines() == [
        "stock chunked eager True",
        f"('hybrid', '{why}') ('triton', '{why}')",
        *(f"implementation '{name}' cannot serve this: {why}" for name in ("hybrid", "hybrid", "triton", "triton")),
    ]


@pytest.mark.skipif("triton" not in IMPLEMENTATIONS, reason="Triton is not installed")
def test_on_a_gpu_the_ladder_depends_on_the_dtype(monkeypatch):
    """Tensors of a GPU that is not there: what is chosen is all that is asked."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    def chosen(dtype=torch.float32, queries=64, width=32, value_width=None, requires_grad=False, **options):
        shapes = ((1, 2, queries, width), (1, 2, 64, width), (1, 2, 64, value_width or width))
        with FakeTensorMode():
            tensors = [torch.empty(s, device="cuda", dtype=dtype, requires_grad=requires_grad) for s in shapes]
            made = {"mask": torch.empty(64, dtype=torch.bool, device="cuda"), "sinks": torch.empty(2, device="cuda")}
            options |= {name: tensor for name, tensor in made.items() if name in options}
            return which_implementation(*tensors, **options).implementation

    assert chosen(torch.bfloat16) == "hybrid"
    assert chosen() == "stock"
    assert chosen(queries=1) == "triton"
    assert chosen(value_width=40) == "triton"
    assert chosen(is_causal=True, window=3) == "triton"
    assert chosen(return_stats=True) == "triton"
    assert chosen(width=128) == "stock"
    assert chosen(width=128, queries=1) == "triton"
    assert chosen(width=128, return_stats=True) == "chunked"
    assert chosen(torch.bfloat16, width=128, return_stats=True) == "hybrid"
    assert chosen(torch.float64) == "chunked"
    for options in ({"mask": True}, {"sinks": True}, {"softcap": 5.0}, {"is_causal": True, "queries": 8}):
        assert chosen(torch.bfloat16, **options) == "triton"
        assert chosen(torch.bfloat16, requires_grad=True, **options) == "triton"
    assert chosen(torch.bfloat16, softcap=5.0, policy=EntropyTarget(1.0)) == "triton"
    assert chosen(torch.bfloat16, softcap=5.0, policy=EntropyTarget(1.0), requires_grad=True) == "chunked"
    for queries in (1, 64):
        assert chosen(policy=EntropyTarget(1.0), queries=queries) == "triton"
        assert chosen(policy=EntropyTarget(1.0), queries=queries, requires_grad=True) == "chunked"
    assert chosen(torch.bfloat16, policy=EntropyTarget(1.0), requires_grad=True) == "hybrid"


@pytest.mark.parametrize(
    ("implementation", "options"),
    [
        ("stock", {"bias": torch.zeros(24)}),
        ("stock", {"softcap": 5.0}),
        ("stock", {"sinks": torch.zeros(4)}),
        ("stock", {"window": 3}),
        ("stock", {"return_stats": True}),
        ("stock", {"mask": torch.ones(24, dtype=torch.bool)}),
        ("chunked", {"dropout": 0.5}),
        ("triton", {"bias": torch.zeros(24)}),
        ("triton", {"dropout": 0.5}),
        ("triton", {"scale": -1.0}),
        ("hybrid", {"window": 3}),
        ("hybrid", {}),  # float32
    ],
)
def test_a_named_implementation_serves_or_says_why_not(implementation, options):
    if implementation not in IMPLEMENTATIONS:
        pytest.skip("Triton is not installed")
    with pytest.raises(NotImplementedError, match=rf"'{implementation}' cannot serve this: ."):
        attention(*qkv(dtype=torch.float32), implementation=implementation, **options)
