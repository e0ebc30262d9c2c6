"""What the call promises beyond numbers: refusals, errors, and being a citizen of PyTorch."""

import warnings

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from sharpmax import (
    PAPER,
    Constant,
    EntropyTarget,
    LengthScaled,
    LogLinear,
    PerHead,
    PerLayer,
    Polynomial,
    SilentPolicyWarning,
    Table,
    detach,
    reference_attention,
)
from sharpmax.torch import IMPLEMENTATIONS, attention, row_stats, which_implementation
from sharpmax.torch.chunked import forward
from sharpmax.torch.chunked import rows as chunked_rows_module
from tests.torch.budgets import assert_within_budget, naive_attention
from tests.torch.kernels import DEVICE, KERNELS, PRECISE, device_of, needs_triton

CPU = [name for name in IMPLEMENTATIONS if name in ("chunked", "eager", "stock")]


def draw(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def qkv(length=24, width=16, heads=4, key_heads=2, dtype=torch.float64):
    q = draw(2, heads, length, width, dtype=dtype) * 2
    return (
        q,
        draw(2, key_heads, length, width, dtype=dtype, seed=1),
        draw(2, key_heads, length, width, dtype=dtype, seed=2),
    )


@pytest.mark.parametrize("implementation", CPU)
@pytest.mark.parametrize("is_causal", [False, True])
def test_constant_1_is_scaled_dot_product_attention(implementation, is_causal):
    q, k, v = qkv()
    ours = attention(q, k, v, policy=Constant(1.0), is_causal=is_causal, implementation=implementation)
    torch.testing.assert_close(ours, scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True))


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (TypeError, "query must be a torch.Tensor, got list", {"query": [1.0]}),
        (TypeError, "query must have a floating dtype", {"query": torch.zeros(2, 4, 24, 16, dtype=torch.int64)}),
        (TypeError, "query must have a floating dtype", {"query": torch.zeros(2, 4, 24, 16, dtype=torch.complex64)}),
        (TypeError, "key must have a floating dtype", {"key": draw(2, 2, 24, 16).to(torch.float8_e4m3fn)}),
        (TypeError, "value must be a dense tensor", {"value": draw(2, 2, 24, 16).to_sparse()}),
        (TypeError, "share a dtype", {"key": draw(2, 2, 24, 16, dtype=torch.float32)}),
        (ValueError, "query must hold values", {"query": draw(2, 4, 24, 16).to("meta")}),
        (ValueError, "key must share the query's device cpu, got meta", {"key": draw(2, 2, 24, 16).to("meta")}),
        (ValueError, "mask must share the query's device", {"mask": torch.ones(24, dtype=torch.bool, device="meta")}),
        (ValueError, "bias must share the query's device", {"bias": torch.zeros(24, device="meta")}),
        (ValueError, "sinks must share the query's device", {"sinks": torch.zeros(4, device="meta")}),
        (ValueError, r"query must be \(batch, heads, length, width\)", {"query": draw(4, 24, 16)}),
        (ValueError, "evenly", {"query": draw(2, 3, 24, 16)}),
        (ValueError, "evenly", {"key": draw(2, 0, 24, 16), "value": draw(2, 0, 24, 16)}),
        (ValueError, "must share", {"value": draw(2, 2, 23, 16)}),
        (ValueError, "must share", {"key": draw(2, 2, 24, 15)}),
        (ValueError, "must share", {"query": draw(1, 4, 24, 16)}),
        (TypeError, "mask must be a boolean tensor", {"mask": torch.zeros(24)}),
        (TypeError, "mask must be a boolean tensor.*got list", {"mask": [True]}),
        (TypeError, "mask must be a dense tensor", {"mask": torch.ones(24, 24, dtype=torch.bool).to_sparse()}),
        (ValueError, "mask of shape .* does not broadcast", {"mask": torch.ones(23, dtype=torch.bool)}),
        (ValueError, "mask of shape .* does not broadcast", {"mask": torch.ones(1, 1, 1, 1, 24, dtype=torch.bool)}),
        (ValueError, "bias of shape .* does not broadcast", {"bias": torch.zeros(5, 24, 24)}),
        (TypeError, "bias must have a floating dtype", {"bias": torch.zeros(24, dtype=torch.bool)}),
        (TypeError, "bias must be a torch.Tensor, got float", {"bias": 1.0}),
        (ValueError, "sinks must have one logit per query head", {"sinks": torch.zeros(2)}),
        (ValueError, "softcap must be positive", {"softcap": 0.0}),
        (ValueError, "softcap must be a finite number", {"softcap": float("inf")}),
        (ValueError, "softcap must be a finite number", {"softcap": 10**400}),
        (ValueError, "softcap must be from 1e-30 to 1e", {"softcap": 1e-42}),
        (ValueError, "softcap must be a finite number, got a tensor of shape", {"softcap": torch.ones(2)}),
        (ValueError, r"dropout must be in \[0, 1\)", {"dropout": 1.0}),
        (ValueError, "dropout must be a finite number, got None", {"dropout": None}),
        (ValueError, "scale must be a finite number, got nan", {"scale": float("nan")}),
        (ValueError, "scale must be a finite number, got '1'", {"scale": "1"}),
        (ValueError, "scale must be a number that does not learn", {"scale": torch.ones((), requires_grad=True)}),
        (ValueError, "window must be", {"window": 0}),
        (ValueError, "window must be", {"window": -2}),
        (ValueError, "window must be", {"window": (-1, 2)}),
        (ValueError, "window must be", {"window": (1, 2, 3)}),
        (ValueError, "window must be", {"window": (1,)}),
        (ValueError, "window must be", {"window": 2.5}),
        (TypeError, "is_causal must be True or False, got 'yes'", {"is_causal": "yes"}),
        (TypeError, "is_causal must be True or False, got a tensor", {"is_causal": torch.ones(24, 24)}),
        (TypeError, "return_stats must be True or False", {"return_stats": 1}),
        (ValueError, "implementation must be one of", {"implementation": "fast"}),
        (TypeError, "policy must be", {"policy": 3.0}),
        (TypeError, "policy must be .* got the class Constant", {"policy": Constant}),
        (ValueError, "for_layer", {"policy": PerLayer((PAPER,))}),
        (ValueError, "LogLinear have shapes", {"policy": LogLinear(a=torch.zeros(3, 1))}),
        (ValueError, "the policy gave an inverse temperature of shape", {"policy": lambda s: s.entropy[..., None]}),
        (ValueError, "negative inverse temperature", {"policy": lambda s: -s.entropy}),
        (TypeError, "a policy returns an inverse temperature", {"policy": lambda s: "sharp"}),
    ],
)
def test_errors_say_what_was_expected_in_one_line(error, match, change):
    q, k, v = qkv()
    arguments = {"query": q, "key": k, "value": v, **change}
    with pytest.raises(error, match=match) as caught:
        attention(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("implementation", [i for i in ("chunked", "eager", "triton") if i in IMPLEMENTATIONS])
@pytest.mark.parametrize("window", [2**31 - 1, 10**12, (2**31 - 1, 10**12)])
def test_a_window_wider_than_any_row_does_not_overflow(window, implementation):
    q, k, v = (tensor.to(device_of(implementation), torch.float32) for tensor in qkv())
    far = (100, 100) if isinstance(window, tuple) else 100
    wide, narrow = (attention(q, k, v, window=w, implementation=implementation) for w in (window, far))
    torch.testing.assert_close(wide, narrow, rtol=0, atol=0)


@pytest.mark.parametrize("implementation", ["chunked", "eager"])
def test_results_do_not_depend_on_the_batch_or_on_padding(implementation):
    q, k, v = qkv()
    together = attention(q, k, v, is_causal=True, implementation=implementation)
    alone = attention(q[1:], k[1:], v[1:], is_causal=True, implementation=implementation)
    torch.testing.assert_close(together[1:], alone)
    more = torch.cat([k, draw(2, 2, 9, 16, seed=5)], dim=2), torch.cat([v, draw(2, 2, 9, 16, seed=6)], dim=2)
    mask = torch.arange(33) < 24
    plain = attention(q, k, v, implementation=implementation)
    torch.testing.assert_close(attention(q, *more, mask=mask, implementation=implementation), plain)


def test_no_chunk_is_larger_than_the_limit(monkeypatch):
    """A causal chunk begins with short rows; what counts is its last."""
    seen = []
    rows_of = chunked_rows_module.rows_of

    def watched(request, chunk, scratch, **options):
        rows = rows_of(request, chunk, scratch, **options)
        seen.append(rows.logits.numel())
        return rows

    monkeypatch.setattr(forward, "rows_of", watched)
    monkeypatch.setitem(chunked_rows_module.ELEMENTS, "cpu", 5000)
    q, k, v = qkv(length=300)
    attention(q, k, v, is_causal=True, implementation="chunked")
    assert max(seen) <= 5000
    assert len(seen) < 200


def test_results_do_not_depend_on_the_size_of_a_chunk(monkeypatch):
    q, k, v = (x.requires_grad_() for x in qkv())
    whole = attention(q, k, v, is_causal=True, implementation="chunked")
    expected = torch.autograd.grad(whole.sum(), (q, k, v))
    monkeypatch.setitem(chunked_rows_module.ELEMENTS, "cpu", 300)
    parts = attention(q, k, v, is_causal=True, implementation="chunked")
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(torch.autograd.grad(parts.sum(), (q, k, v)), expected)


PER_HEAD = [
    LogLinear(*(torch.linspace(low, 0.4, 4)[:, None] for low in (-0.4, -0.1, 0.1))),
    LogLinear(a=((0.1,), (-0.2,), (0.3,), (0.0,)), c=torch.tensor(0.2)),
    PerHead((PAPER, Constant(1.5), EntropyTarget(0.5), LogLinear(a=0.2))),
    detach(EntropyTarget(torch.tensor([[0.2], [0.5], [0.7], [1.0]]))),
    Table((0.0, 2.0), (torch.full((4, 1), 1.2), torch.linspace(1, 2, 4)[:, None])),  # not cut by heads: two passes
]


@pytest.mark.parametrize("policy", PER_HEAD, ids=["columns", "tuples", "members", "detached", "table"])
def test_chunks_of_some_heads_take_the_policies_of_those_heads(policy, monkeypatch):
    monkeypatch.setitem(chunked_rows_module.ELEMENTS, "cpu", 300)  # one key head at a time
    q, k, v = qkv()
    got, stats = attention(q, k, v, policy=policy, is_causal=True, implementation="chunked", return_stats=True)
    expected, wanted = attention(q, k, v, policy=policy, is_causal=True, implementation="eager", return_stats=True)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(stats.inverse_temperature, wanted.inverse_temperature)
    alone = attention(q, k, v, policy=policy, is_causal=True, implementation="chunked")
    assert torch.equal(alone, got)


@pytest.mark.parametrize("hidden_by", ["nothing", "mask", "everything", "inf in a key"])
@pytest.mark.parametrize(
    "policy",
    [PAPER, *PER_HEAD[:4], Constant(2.0), LengthScaled(0.3, of="position")],
    ids=["paper", "columns", "tuples", "members", "detached", "constant", "length"],
)
def test_one_query_attends_as_the_dense_rows_do(policy, hidden_by):
    q, k, v = qkv()
    q, mask = q[:, :, -1:], None
    if hidden_by in ("mask", "everything"):
        mask = (torch.arange(24) < (5 if hidden_by == "mask" else 0))[None, None, None].expand(2, 1, 1, 24)
        v = v.masked_fill(torch.arange(24)[:, None] >= 5, torch.nan)  # which nobody sees
    elif hidden_by == "inf in a key":
        q, k = q.abs(), k.index_fill(2, torch.tensor([3]), -torch.inf)
    chosen = which_implementation(q, k, v, policy=policy, mask=mask, implementation="chunked")
    assert chosen.path == "one query"
    got = attention(q, k, v, policy=policy, mask=mask, implementation="chunked")
    torch.testing.assert_close(got, attention(q, k, v, policy=policy, mask=mask, implementation="eager"))


FAINT = Table((0.0, 9.0), (1e-12, 1.0))


@pytest.mark.parametrize(
    ("scale", "policy", "reason"),
    [
        (-0.5, PAPER, "not positive"),
        (0.0, PAPER, "not positive"),
        (1e-20, PAPER, "masked keys back"),
        (1e-6, FAINT, "masked keys back"),
        (1e-6, detach(FAINT), "masked keys back"),
    ],
)
def test_scales_that_kernels_refuse_are_served_by_others(scale, policy, reason):
    q, k, v = (x.half() for x in qkv())
    for implementation in KERNELS:
        there = [x.to(device_of(implementation)) for x in (q, k, v)]
        with pytest.raises(NotImplementedError, match=reason):
            attention(*there, policy=policy, is_causal=True, scale=scale, implementation=implementation)
    exact = reference_attention(*(x.double() for x in (q, k, v)), policy=policy, is_causal=True, scale=scale)
    for implementation in ("chunked", "eager", None):
        got = attention(q, k, v, policy=policy, is_causal=True, scale=scale, implementation=implementation)
        torch.testing.assert_close(got.double(), exact, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [-1.0, 0.0, 1e-46])
def test_a_causal_mask_holds_at_scales_that_stock_refuses(scale, dtype):
    """PyTorch's own attention gives NaN there, or where values are not as wide as keys wrong numbers."""
    draws = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 130, width, generator=draws, dtype=dtype) for width in (24, 24, 17))
    assert which_implementation(q, k, v, is_causal=True, scale=scale).implementation != "stock"
    with pytest.raises(NotImplementedError, match="must be positive"):
        attention(q, k, v, is_causal=True, scale=scale, implementation="stock")
    exact = reference_attention(*(x.double() for x in (q, k, v)), is_causal=True, scale=scale)
    torch.testing.assert_close(attention(q, k, v, is_causal=True, scale=scale).double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"is_causal": True}, {"window": 2}, {"window": (1, 1)}])
def test_queries_that_come_long_before_the_first_key_see_nothing(options):
    """So many that a whole chunk of them has no key; statistics and gradients too."""
    first = [draw(1, 2, length, 16, seed=seed).requires_grad_() for seed, length in enumerate((300, 10, 10))]
    found, wanted = (attention(*first, **options, return_stats=True, implementation=i) for i in ("chunked", "eager"))
    torch.testing.assert_close(found, wanted)
    gradients = [torch.autograd.grad(out.sum() + s.entropy.sum(), first) for out, s in (found, wanted)]
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(row_stats(*first[:2], **options).entropy, wanted[1].entropy)


@pytest.mark.parametrize("options", [{}, {"mask": torch.ones(8, 8, dtype=torch.bool).tril()}])
def test_torch_func_differentiates(options):
    """By the ladder: what cannot be differentiated so refuses, and says so."""
    q, k, v = qkv(length=8)
    leaf = q.clone().requires_grad_()
    (expected,) = torch.autograd.grad(attention(leaf, k, v, **options, implementation="eager").sum(), leaf)
    torch.testing.assert_close(torch.func.grad(lambda x: attention(x, k, v, **options).sum())(q), expected)
    with pytest.raises(NotImplementedError, match=r"torch\.func"):
        torch.func.grad(lambda x: attention(x, k, v, **options, implementation="chunked").sum())(q)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_same_call_twice_is_bit_equal(implementation):
    dtype = torch.float16 if implementation == "hybrid" else torch.float32
    q, k, v = (x.to(device_of(implementation)) for x in qkv(dtype=dtype))
    first, second = (attention(q, k, v, is_causal=True, implementation=implementation) for _ in range(2))
    assert torch.equal(first, second)


NUMPY_WARNS = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of a NaN, where it interprets a kernel


@NUMPY_WARNS
@pytest.mark.parametrize(
    ("implementation", "length"),
    # PyTorch's own kernel loses a NaN where keys are few, and 'hybrid' leaves the output to it.
    [(name, length) for name in CPU for length in (5, 24)] + [(name, 24) for name in KERNELS],
)
def test_a_nan_or_infinity_poisons_its_own_row_alone(implementation, length):
    dtype = PRECISE.get(implementation, torch.float64)
    q, k, v = (x.to(device_of(implementation)) for x in qkv(length, dtype=dtype))
    clean = attention(q, k, v, implementation=implementation)
    for poison in (float("nan"), float("inf")):
        bad = q.clone()
        bad[0, 1, 3, 0] = poison
        got = attention(bad, k, v, implementation=implementation)
        assert got[0, 1, 3].isnan().all()
        got[0, 1, 3] = clean[0, 1, 3]
        torch.testing.assert_close(got, clean)


@pytest.mark.parametrize(
    "betas",
    [
        torch.tensor([1.0, 3.0]),
        np.asarray([1.0, 3.0]),
        (torch.tensor(1.0), torch.tensor(3.0)),
        (1, 3),
        torch.tensor([[[1.0], [1.0], [1.2], [1.5]], [[3.0], [2.0], [1.2], [1.5]]]),
        (((1.0,), (1.0,), (1.2,), (1.5,)), ((3.0,), (2.0,), (1.2,), (1.5,))),
    ],
    ids=["tensor", "numpy", "tensors", "integers", "a value per head", "a value per head, in tuples"],
)
@pytest.mark.parametrize("implementation", KERNELS)
def test_kernels_take_a_table_whatever_holds_its_numbers(implementation, betas):
    q, k, v = (x.to(device_of(implementation)) for x in qkv(dtype=PRECISE[implementation]))
    options = {"policy": Table((0.5, 3.0), betas), "is_causal": True}
    got = attention(q, k, v, **options, implementation=implementation)
    exact = attention(*(x.double() for x in (q, k, v)), **options, implementation="eager")
    arrays = {"query": q, "key": k, "value": v, **dict.fromkeys(("mask", "bias", "sinks"))}
    naive, _ = naive_attention(arrays, {**options, **dict.fromkeys(("scale", "softcap", "window"))})
    assert_within_budget("output", got, exact, naive)


@pytest.mark.parametrize("implementation", KERNELS)
def test_a_table_learns_in_kernels(implementation):
    q, k, v = (x.to(device_of(implementation)) for x in qkv(dtype=PRECISE[implementation]))
    betas = torch.tensor([1.0, 3.0], device=q.device, requires_grad=True)
    found = [
        torch.autograd.grad(attention(q, k, v, policy=Table((0.5, 3.0), betas), implementation=i).float().sum(), betas)
        for i in (implementation, "eager")
    ]
    torch.testing.assert_close(*found, rtol=2e-2, atol=2e-2)
    assert found[0][0].abs().min() > 0.1


@NUMPY_WARNS
@pytest.mark.parametrize("policy", [PAPER, Table((0.0, 1.0, 2.0), (1.0, 1.5, 2.0))], ids=["polynomial", "table"])
@needs_triton
@pytest.mark.parametrize(("implementation", "queries"), [("triton", 24), ("triton", 1), ("hybrid", 24)])
def test_kernels_report_a_poisoned_row_as_eager_does(implementation, queries, policy):
    """And a key of NaN poisons every row of its head, whatever the other keys are."""
    q, k, v = (x.to(DEVICE) for x in qkv(dtype=PRECISE[implementation]))
    q = q[:, :, :queries].clone()
    q[0, 0, 0, 0], q[1, 3, -1, 0] = torch.nan, torch.inf
    k[0, 1, 5, 0] = torch.nan
    got, stats = attention(q, k, v, policy=policy, implementation=implementation, return_stats=True)
    wanted, exact = attention(q, k, v, policy=policy, implementation="eager", return_stats=True)
    torch.testing.assert_close(got, wanted, equal_nan=True, rtol=2e-3, atol=2e-3)
    for name in ("entropy", "logsumexp", "maximum", "inverse_temperature"):
        torch.testing.assert_close(
            getattr(stats, name), getattr(exact, name), equal_nan=True, rtol=1e-3, atol=1e-3, msg=name
        )


@needs_triton
@pytest.mark.parametrize("queries", [20, 1])
def test_kernels_find_a_head_that_lies_far_from_the_first(queries):
    """2^31 numbers on, where 32 bits do not reach; of the memory between, no page is touched."""
    q, k, v = (x[:1, :3].to(DEVICE) for x in qkv(20, heads=3, key_heads=3, dtype=torch.float16))
    q = q[:, :, :queries]

    def apart(tensor):
        length, width = tensor.shape[2:]
        room = torch.empty(2**31 + length * width, dtype=tensor.dtype, device=DEVICE)
        far = room.as_strided(tensor.shape, (2**31, 2**30, width, 1))
        return far.copy_(tensor)

    expected = attention(q, k, v, implementation="triton")
    assert torch.equal(attention(apart(q), apart(k), apart(v), implementation="triton"), expected)
    if queries > 1:
        near, far = ([x.requires_grad_() for x in tensors] for tensors in ((q, k, v), (apart(q), apart(k), apart(v))))
        both = [attention(*x, implementation="triton", return_stats=True) for x in (near, far)]
        found = [
            torch.autograd.grad(out.sum() + stats.entropy.sum(), x)
            for x, (out, stats) in zip((near, far), both, strict=True)
        ]
        for one, other in zip(*found, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("implementation", [*CPU, None])
@pytest.mark.parametrize("shape", [(0, 2, 5, 8), (1, 2, 0, 8), (1, 2, 5, 8)])
def test_empty_tensors(implementation, shape):
    q = torch.zeros(shape)
    k = torch.zeros(shape[0], 2, 0, 8)
    if implementation in (None, "eager"):
        out, stats = attention(q, k, k, implementation=implementation, return_stats=True)
        assert out.shape == shape
        assert not out.any()
        assert (stats.maximum == -torch.inf).all()
    else:
        with pytest.raises(NotImplementedError, match="length 0"):
            attention(q, k, k, implementation=implementation)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_non_contiguous_inputs(implementation):
    dtype = torch.float16 if implementation == "hybrid" else torch.float32
    device = device_of(implementation)
    packed = draw(2, 3, 24, 2, 16, dtype=dtype).to(device)  # (batch, three, length, heads, width)
    q, k, v = (packed[:, i].transpose(1, 2) for i in range(3))
    got = attention(q, k, v, is_causal=True, implementation=implementation)
    expected = attention(*(x.contiguous() for x in (q, k, v)), is_causal=True, implementation=implementation)
    torch.testing.assert_close(got, expected)
    backwards = draw(2, 2, 16, 24, dtype=dtype).to(device).transpose(2, 3)  # the last axis has a stride
    assert torch.equal(
        attention(backwards, k, v, implementation=implementation),
        attention(backwards.contiguous(), k, v, implementation=implementation),
    )


def test_a_policy_learns():
    q, k, v = qkv()
    gradients = []
    for name in ("chunked", "eager"):
        policy = LogLinear(
            a=torch.zeros(4, 1, dtype=torch.float64, requires_grad=True),
            c=torch.full((4, 1), 0.1, dtype=torch.float64, requires_grad=True),
        )
        out = attention(q, k, v, policy=policy, implementation=name)
        gradients.append(torch.autograd.grad((out * out).sum(), (policy.a, policy.c)))
    torch.testing.assert_close(*gradients)
    assert all(g.abs().min() > 0 for g in gradients[0])


def test_any_callable_is_a_policy():
    q, k, v = qkv()
    bend = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    results = [
        attention(q, k, v, policy=lambda s: 1 + bend * s.entropy + 0.1 * s.variance, implementation=name)
        for name in ("chunked", "eager")
    ]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(r.square().sum(), bend) for r in results))


@pytest.mark.parametrize("implementation", ["chunked", "eager"])
def test_statistics_alone(implementation):
    q, k, v = qkv()
    extra = frozenset({"minimum", "variance"})
    alone = row_stats(q, k, is_causal=True, extra=extra, implementation=implementation)
    _, beside = attention(q, k, v, is_causal=True, return_stats=True, implementation=implementation)
    for name in ("entropy", "logsumexp", "maximum", "count"):
        torch.testing.assert_close(getattr(alone, name), getattr(beside, name))
    e = (q[0, 3] @ k[0, 1].T / 4).masked_fill(~torch.ones(24, 24, dtype=torch.bool).tril(), torch.inf)
    torch.testing.assert_close(alone.minimum[0, 3], e.amin(-1))
    for unknown in (frozenset({"kurtosis"}), "variance", 3):
        with pytest.raises(ValueError, match="extra may name"):
            row_stats(q, k, extra=unknown)
    with pytest.raises(TypeError, match="unexpected keyword argument 'foo'"):
        which_implementation(q, k, k, foo=1)


def test_a_silent_policy_says_so_once_statistics_are_known():
    q, k = torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, 600, 8)
    with pytest.warns(SilentPolicyWarning):
        attention(q, k, k, return_stats=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention(q, k, k)
        attention(q, k, k, policy=Polynomial((1.0, 0.0)), return_stats=True)


def test_dropout_drops_and_rescales():
    q, k, v = qkv(length=64)
    torch.manual_seed(0)
    dropped = attention(q, k, v, dropout=0.5)
    torch.manual_seed(0)
    assert torch.equal(dropped, attention(q, k, v, dropout=0.5))
    assert not torch.equal(dropped, attention(q, k, v))


@pytest.mark.parametrize("queries", [24, 1])
@pytest.mark.parametrize("policy", [PAPER, EntropyTarget(1.0)])
@pytest.mark.parametrize("implementation", ["chunked", "eager", pytest.param("triton", marks=needs_triton)])
def test_a_sink_of_minus_infinity_is_none(implementation, policy, queries):
    dtype = torch.float16 if implementation == "triton" else torch.float64
    q, k, v = (x.to(device_of(implementation)) for x in qkv(dtype=dtype))
    q = q[:, :, -queries:].requires_grad_()
    found = []
    for sinks in (None, torch.full((4,), -torch.inf, dtype=dtype, device=q.device)):
        options = {"policy": policy, "sinks": sinks, "implementation": implementation, "return_stats": True}
        output, stats = attention(q, k, v, **options)
        slope = torch.autograd.grad(output.float().square().sum(), q)
        found.append([output, stats.entropy, stats.inverse_temperature, *slope])
        with torch.no_grad():  # by other code, where there is any
            found[-1] += [attention(q, k, v, **{**options, "return_stats": False})]
    torch.testing.assert_close(*found)


@pytest.mark.filterwarnings("ignore:The PyTorch API of")  # both are prototypes
def test_tensors_of_other_kinds_are_refused_by_name():
    plain = torch.randn(1, 2, 5, 4)
    nested = torch.nested.nested_tensor([torch.randn(2, 5, 4), torch.randn(2, 3, 4)])
    with pytest.raises(TypeError, match="query must be a dense tensor, got a nested one; attention_varlen"):
        attention(nested, plain, plain)
    masked = torch.masked.masked_tensor(plain, plain > 0)
    with pytest.raises(TypeError, match="key must be a plain tensor, got a MaskedTensor"):
        attention(plain, masked, plain)
