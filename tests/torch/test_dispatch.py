"""Which implementation serves a call, and what one that is named and cannot says."""

import os
import re
import subprocess
import sys
import textwrap

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from sharpmax import PAPER, Constant, EntropyTarget, LengthScaled, LogLinear, PerHead, Policy, detach
from sharpmax.torch import IMPLEMENTATIONS, attention, dispatch, which_implementation
from sharpmax.torch.dispatch import plan_of
from sharpmax.torch.plan import KERNELS, LEADERS, ON_DEVICE
from sharpmax.torch.request import validated
from tests.places import ROOT
from tests.torch.kernels import DEVICE, needs_triton
from tests.torch.test_api import qkv


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (PAPER, "chunked"),
        (LogLinear(a=torch.zeros(4, 1)), "chunked"),
        (detach(PerHead((PAPER,) * 4)), "chunked"),
        (LogLinear(a=torch.zeros(4, 1, requires_grad=True)), "chunked"),
        (Constant(2.0), "stock"),  # reads no logit: one pass of PyTorch's own kernel
        (LengthScaled(1.0), "stock"),
        (lambda stats: 1 + stats.entropy, "chunked"),  # which 'stock' refuses
    ],
    ids=["paper", "columns", "members", "learns", "constant", "length", "callable"],
)
def test_on_a_cpu_chunks_serve_a_policy_that_reads_logits(policy, expected):
    is_ours = isinstance(policy, Policy)  # 'stock' refuses others
    policy_learns = getattr(getattr(policy, "a", None), "requires_grad", False)
    for learns in (False, True):
        q, k, v = (x.requires_grad_(learns) for x in qkv(dtype=torch.float32))
        chosen = which_implementation(q, k, v, policy=policy, is_causal=True)
        assert chosen.implementation == expected
        assert ("faster on a CPU" in chosen.refused.get("stock", "")) is (expected == "chunked" and is_ours)
        alone = expected == "chunked" and is_ours and not learns and not policy_learns
        assert (chosen.path == "one pass") is alone


@pytest.mark.skipif("CI" not in os.environ, reason="elsewhere Triton may be missing, and its tests are skipped")
def test_the_kernels_are_there_where_ci_tests_them():
    assert {"hybrid", "triton"} <= set(IMPLEMENTATIONS)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("sys.modules['triton'] = None", "Triton is not installed"),
        *(
            pytest.param(*values, marks=pytest.mark.slow)
            for values in (
                ("import types; sys.modules['triton'] = types.ModuleType('')", "Triton is not installed"),  # a folder
                ("import triton; triton.__version__ = '3.5.1'", "it needs Triton 3.6 or later, found 3.5.1"),
            )
        ),
    ],
)
def test_without_a_triton_that_runs_the_kernels_the_others_serve_and_say_so(setting, why):
    if "import triton" in setting:
        pytest.importorskip("triton")
    code = f"""
import sys
{setting}
import torch
from sharpmax import Constant
from sharpmax.torch import IMPLEMENTATIONS, attention, attention_varlen, which_implementation
x = torch.randn(1, 2, 4, 8)
print(*IMPLEMENTATIONS, attention(x, x, x).shape == x.shape)
print(*which_implementation(x, x, x, policy=Constant(2.0)).refused.items())
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


@needs_triton
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


@needs_triton
def test_the_page_shows_how_to_ask_for_the_plan_of_a_gpu_that_is_not_there(monkeypatch, capsys):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    page = (ROOT / "docs" / "kernels" / "index.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^    import sharpmax\.torch\n(?:(?:    .*)?\n)+", page, re.MULTILINE)
    exec(compile(textwrap.dedent(block), "docs/kernels/index.md", "exec"), {})
    (printed,) = re.findall(r"^It prints:\n\n```text\n(.*?)```", page, re.MULTILINE | re.DOTALL)
    assert capsys.readouterr().out == printed
    without, learning, masked = printed.split("\n\n")
    assert without.startswith("hybrid, without a gradient: our kernels; ")
    assert learning.startswith("hybrid, sharpened query: ")
    assert masked.startswith("triton, ")
    assert "not hybrid: " in masked
    assert "take no mask" in masked


HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64
FEWER_QUERIES = {"shape": (2, 4, 8, 16), "is_causal": True}
SOLVED = EntropyTarget(1.0)


class Searching(EntropyTarget):
    """Solves for beta, from the entropy alone."""

    needs = frozenset({"entropy"})


REFUSED = [
    *((name, reason, options) for name in ("hybrid", "triton", "chunked", "stock") for reason, options in (
        ("dropout is drawn by 'eager' only", {"dropout": 0.5}),
        ("a tensor with an axis of length 0", {"shape": (0, 4, 24, 16)}),
    )),
    *((name, reason, {"dtype": own, **options}) for name, own in {"hybrid": HALF, "triton": SINGLE}.items()
      for reason, options in (
          ("bias is not honoured", {"bias": torch.zeros(24)}),
          ("the float32 gradient through a solved beta", {"policy": SOLVED, "dtype": SINGLE, "gradient": True}),
          ("a beta that is solved for", {"policy": SOLVED, "dtype": HALF, "gradient": True, "softcap": 5.0}),
          ("the kernels compute in float32 at most", {"dtype": DOUBLE}),
          ("heads wider than 256", {"shape": (2, 4, 24, 264)}),
          ("a scale that is not positive", {"scale": -1.0}),
          ("would bring masked keys back", {"scale": 1e-20}),
      )),
    ("hybrid", "ours for Hopper take no mask", {"dtype": HALF, "mask": torch.ones(24, dtype=torch.bool)}),
    ("hybrid", "take no softcap", {"dtype": HALF, "softcap": 5.0}),
    ("hybrid", "take no sinks", {"dtype": HALF, "sinks": torch.zeros(4)}),
    ("hybrid", "take half precision", {}),
    ("hybrid", "know no window", {"dtype": HALF, "window": 3}),
    ("hybrid", "aligns a causal mask with the first key", {"dtype": HALF, **FEWER_QUERIES}),
    ("hybrid", "one query is decoded by 'triton'", {"dtype": HALF, "shape": (2, 4, 1, 16)}),
    ("hybrid", "take one width for all, a multiple of 8", {"dtype": HALF, "shape": (2, 4, 24, 12)}),
    *((name, "interpreter multiplies bfloat16 as integers", {"dtype": torch.bfloat16})
      for name in ("hybrid", "triton") if DEVICE == "cpu"),
    ("stock", "mask is not honoured", {"mask": torch.ones(24, dtype=torch.bool)}),
    ("stock", "bias is not honoured", {"bias": torch.zeros(24)}),
    ("stock", "softcap is not honoured", {"softcap": 5.0}),
    ("stock", "sinks is not honoured", {"sinks": torch.zeros(4)}),
    ("stock", "window is not honoured", {"window": 3}),
    ("stock", "aligns a causal mask with the first key", FEWER_QUERIES),
    ("stock", "the scale, which must be positive", {"is_causal": True, "scale": -1.0}),
    ("stock", "variance: the identity gives entropy", {"policy": LogLinear(c=0.1), "asked": "variance"}),
    ("stock", "the kernels do not return the maximum$", {"policy": PAPER, "asked": "maximum"}),
    ("stock", "may ask for more than the identity gives", {"policy": Searching(1.0)}),
    ("stock", "half precision rounds", {"dtype": HALF}),
    ("stock", "which return_stats promises", {"return_stats": True}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("implementation", "reason", "options"), REFUSED, ids=[f"{name}: {reason}" for name, reason, _ in REFUSED]
)
def test_every_refusal_says_why(implementation, reason, options):
    """One for each reason of each implementation; derivatives are refused in test_transforms, many heads in triton/."""
    if implementation not in IMPLEMENTATIONS:
        pytest.skip("Triton is not installed")
    options = {"dtype": SINGLE, "shape": (2, 4, 24, 16), "gradient": False, "asked": None, **options}
    dtype, (batch, heads, queries, width), gradient, asked = (
        options.pop(name) for name in ("dtype", "shape", "gradient", "asked")
    )
    device = DEVICE if implementation in ("hybrid", "triton") else "cpu"
    options = {name: o.to(device) if isinstance(o, torch.Tensor) else o for name, o in options.items()}
    q, k = (torch.zeros(batch, heads, n, width, dtype=dtype, device=device) for n in (queries, 24))
    q.requires_grad_(gradient)
    if asked is not None:
        request = validated(q, k, k, **options, asked=frozenset({asked}))
        with pytest.raises(NotImplementedError, match=rf"'{implementation}' cannot serve this: .*{reason}"):
            plan_of(request, implementation)
        return
    with pytest.raises(NotImplementedError, match=rf"'{implementation}' cannot serve this: .*{reason}"):
        attention(q, k, k, implementation=implementation, **options)


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"implementation": "eager"}, "dense"),
        ({"implementation": "chunked"}, "one pass"),
        ({"implementation": "chunked", "gradient": True}, "three steps"),
        ({"implementation": "stock"}, "three steps"),
        ({"implementation": "triton"}, "fused"),
        ({"implementation": "triton", "queries": 1}, "decode"),
        ({"implementation": "triton", "queries": 1, "window": 3}, "fused"),
        ({"implementation": "triton", "gradient": True}, "three steps"),
        ({"implementation": "triton", "policy": LogLinear(c=0.1)}, "fused"),
        ({"implementation": "hybrid"}, "sharpened query"),
        ({"implementation": "hybrid", "policy": Constant(1.0)}, "stock attention"),
        ({"implementation": "hybrid", "policy": Constant(2.0)}, "stock attention"),
        ({"implementation": "hybrid", "policy": LengthScaled(1.0)}, "sharpened query"),
        ({"implementation": "hybrid", "policy": EntropyTarget(1.0)}, "three steps"),
        ({"implementation": "hybrid", "gradient": True}, "sharpened query"),
        ({"implementation": "hybrid", "LARGE": 0}, "sharpened query, per key head"),
        ({"implementation": "hybrid", "on_hopper": True}, "two passes"),
        ({"implementation": "triton", "on_hopper": True}, "two passes"),
        ({"implementation": "triton", "on_hopper": True, "softcap": 5.0}, "fused"),
        ({"implementation": "hybrid", "on_hopper": True, "WORTH_SAMPLING": 0}, "speculative"),
        ({"implementation": "hybrid", "on_hopper": True, "WORTH_SAMPLING": 0, "WORTH_LEADERS": 0}, LEADERS),
        ({"implementation": "hybrid", "on_hopper": True, "WORTH_SAMPLING": 0, "WORTH_LEADERS": 0, "LARGE": 0},
         "speculative"),
    ],
)  # fmt: skip
def test_a_plan_names_its_path_and_prints(options, path, monkeypatch):
    options = {"queries": 24, "gradient": False, "on_hopper": False, **options}
    if options["implementation"] not in IMPLEMENTATIONS:
        pytest.skip("Triton is not installed")
    on_hopper = options.pop("on_hopper")
    monkeypatch.setattr(dispatch, "statistics_on_hopper", lambda query, key: on_hopper)
    for name in ("LARGE", "WORTH_SAMPLING", "WORTH_LEADERS"):
        if name in options:
            monkeypatch.setattr(dispatch, name, options.pop(name))
    dtype = {"hybrid": HALF, "triton": HALF}.get(options["implementation"], SINGLE)
    q, k = (torch.zeros(1, 2, n, 16, dtype=dtype, device=DEVICE) for n in (options.pop("queries"), 24))
    q.requires_grad_(options.pop("gradient"))
    plan = which_implementation(q, k, k, **options)
    assert plan.path == path
    first, *rest = str(plan).splitlines()
    assert first == f"{plan.implementation}, {path}: {KERNELS[path]}"
    assert rest == ([f"  decided on the device: {ON_DEVICE[path]}"] if "speculative" in path else [])


@pytest.mark.parametrize(
    ("options", "served", "refused"),
    [
        ({"policy": Constant(2.0)}, "stock", ["hybrid", "triton"]),
        ({"softcap": 10.0}, "chunked", ["hybrid", "triton", "stock"]),
        ({"dropout": 0.1}, "eager", ["hybrid", "triton", "stock", "chunked"]),
        ({"implementation": "eager"}, "eager", []),
    ],
)
def test_a_plan_prints_which_runs_and_why_the_faster_ones_refuse(options, served, refused):
    q, k, v = qkv(dtype=torch.float32)
    plan = which_implementation(q, k, v, **options)
    assert plan.implementation == served
    assert list(plan.refused) == refused
    assert all(next(iter(options)) in plan.refused[name] for name in refused if name in ("stock", "chunked"))
    assert str(plan).splitlines()[1:] == [f"  not {name}: {plan.refused[name]}" for name in refused]
