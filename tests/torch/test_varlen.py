"""Packed sequences equal one call a document: output, statistics and gradients, in few calls."""

from itertools import accumulate, pairwise

import pytest
import torch

from sharpmax import PAPER, EntropyTarget, LengthScaled
from sharpmax.torch import IMPLEMENTATIONS, attention, attention_varlen, varlen

OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"window": 4},
    "window to both sides": {"window": (3, 2)},
    "sinks and softcap": {"is_causal": True, "sinks": torch.tensor([0.1, 0.2, 0.3, 0.4]), "softcap": 5.0},
    "by length": {"is_causal": True, "policy": LengthScaled.ssmax(0.4)},
    "by position": {"is_causal": True, "policy": LengthScaled.llama4(floor_scale=4)},
    "iterative": {"is_causal": True, "policy": EntropyTarget(0.8)},
}
LENGTHS = {
    "equal": [5, 5, 5],
    "one": [17],
    "nearly equal, out of order": [19, 3, 20, 3, 18, 1],
    "with empty ones": [0, 4, 0, 0, 9, 0],
}


def draw(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype).requires_grad_()


def packed(total_q, total_k, dtype=torch.float64):
    return [draw(4, total_q, 16, dtype=dtype), draw(2, total_k, 16, seed=1, dtype=dtype),
            draw(2, total_k, 16, seed=2, dtype=dtype)]  # fmt: skip


def ends(lengths):
    return [0, *accumulate(lengths)]


def one_by_one(q, k, v, of_queries, of_keys, **options):
    """Each document alone; the ones without queries give nothing."""
    parts = [
        attention(q[None, :, a:b], k[None, :, c:d], v[None, :, c:d], return_stats=True, **options)
        for (a, b), (c, d) in zip(pairwise(of_queries), pairwise(of_keys), strict=True)
        if b > a
    ]
    names = ("entropy", "logsumexp", "maximum", "count", "inverse_temperature")
    stats = {name: torch.cat([getattr(s, name)[0] for _, s in parts], dim=1) for name in names}
    return torch.cat([out[0] for out, _ in parts], dim=1), stats


@pytest.mark.filterwarnings("ignore::sharpmax.SilentPolicyWarning")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_as_one_by_one(lengths, options):
    tensors = packed(sum(lengths), sum(lengths))
    marks = torch.tensor(ends(lengths))
    got, stats = attention_varlen(*tensors, marks, return_stats=True, **options)
    expected, expected_stats = one_by_one(*tensors, marks.tolist(), marks.tolist(), **options)
    torch.testing.assert_close(got, expected)
    for name, field in expected_stats.items():
        torch.testing.assert_close(getattr(stats, name), field, msg=name)
    losses = [out.square().sum() + h.sum() for out, h in ((got, stats.entropy), (expected, expected_stats["entropy"]))]
    torch.testing.assert_close(*(torch.autograd.grad(loss, tensors) for loss in losses))
    torch.testing.assert_close(attention_varlen(*tensors, marks, **options), expected)


@pytest.mark.parametrize("is_causal", [False, True])
def test_more_keys_than_queries(is_causal):
    of_queries, of_keys = [3, 1, 2, 3], [7, 5, 6, 3]
    tensors = packed(sum(of_queries), sum(of_keys))
    marks = torch.tensor(ends(of_queries)), torch.tensor(ends(of_keys), dtype=torch.int32)
    got = attention_varlen(*tensors, *marks, is_causal=is_causal)
    expected, _ = one_by_one(*tensors, marks[0].tolist(), marks[1].tolist(), is_causal=is_causal)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(*(torch.autograd.grad(out.square().sum(), tensors) for out in (got, expected)))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_any_implementation_serves_the_batches(implementation):
    dtype = torch.float16 if implementation == "hybrid" else torch.float32
    device = "cuda" if torch.cuda.is_available() else "cpu"  # where the kernels run, else by Triton's interpreter
    tensors = [x.detach().to(device) for x in packed(21, 21, dtype)]
    marks = torch.tensor([0, 10, 12, 21])
    got = attention_varlen(*tensors, marks, is_causal=True, implementation=implementation)
    expected, _ = one_by_one(*(x.double() for x in tensors), marks.tolist(), marks.tolist(), is_causal=True)
    assert got.dtype == dtype
    assert (got.double() - expected).norm() <= (2e-2 if dtype == torch.float16 else 1e-5) * expected.norm()


def calls_of(monkeypatch, lengths, **options):
    seen = []

    def counted(query, key, value, **rest):
        seen.append(query.shape[0] * query.shape[2] ** 2)
        return attention(query, key, value, **rest)

    monkeypatch.setattr(varlen, "attention", counted)
    x = torch.randn(1, sum(lengths), 4)
    attention_varlen(x, x, x, torch.tensor(ends(lengths)), **options)
    return seen


def test_few_calls_and_little_filling(monkeypatch):
    assert len(calls_of(monkeypatch, [8] * 50)) == 1
    lengths = torch.randint(20, 200, (100,), generator=torch.Generator().manual_seed(0)).tolist()
    work = calls_of(monkeypatch, lengths, is_causal=True)
    assert len(work) <= 25
    assert sum(work) <= sum(n * n for n in lengths) / varlen.FILLED**2
    exact = calls_of(monkeypatch, lengths)  # not causal: filling would be seen
    assert sum(exact) == sum(n * n for n in lengths)
    assert len(exact) == len(set(lengths))


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (ValueError, "cu_seqlens_q must rise from 0 to the total length 20, got", {"cu_seqlens_q": [0, 3, 19]}),
        (ValueError, "cu_seqlens_q must rise", {"cu_seqlens_q": [1, 20]}),
        (ValueError, "cu_seqlens_q must rise", {"cu_seqlens_q": [0, 9, 3, 20]}),
        (ValueError, "cu_seqlens_q must rise", {"cu_seqlens_q": [0]}),
        (TypeError, "cu_seqlens_q must be a one-dimensional integer tensor, got list", {"cu_seqlens_q": None}),
        (TypeError, "cu_seqlens_q must be a one-dimensional integer tensor, got", {"cu_seqlens_q": [0.0, 20.0]}),
        (TypeError, "cu_seqlens_q must be a one-dimensional integer tensor, got", {"cu_seqlens_q": [[0, 20]]}),
        (TypeError, "cu_seqlens_q must be a one-dimensional integer tensor, got", {"cu_seqlens_q": [False, True]}),
        (ValueError, "cu_seqlens_q marks 1 documents, but cu_seqlens_k marks 2", {"cu_seqlens_k": [0, 3, 20]}),
        (ValueError, "cu_seqlens_k must rise", {"cu_seqlens_k": [0, 21]}),
        (ValueError, "cu_seqlens_k is needed", {"query": draw(4, 10, 16), "cu_seqlens_q": [0, 10]}),
        (ValueError, "key and value must share their total length", {"value": draw(2, 19, 16)}),
        (ValueError, r"query must be \(heads, total length, width\), got \(1, 4", {"query": draw(1, 4, 20, 16)}),
        (ValueError, r"key must be \(heads, total length, width\), got list", {"key": [1.0]}),
        (ValueError, "takes no mask", {"mask": torch.ones(20, 20, dtype=torch.bool)}),
        (ValueError, "window must be", {"window": -1}),
        (ValueError, "implementation must be one of", {"implementation": "fast"}),
    ],
)
def test_errors_name_the_argument(error, match, change):
    q, k, v = packed(20, 20)
    arguments = {"query": q, "key": k, "value": v, "cu_seqlens_q": [0, 20], "policy": PAPER, **change}
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        if arguments.get(name) is not None:
            arguments[name] = torch.tensor(arguments[name])
    if arguments["cu_seqlens_q"] is None:
        arguments["cu_seqlens_q"] = [0, 20]
    with pytest.raises(error, match=match) as caught:
        attention_varlen(**arguments)
    assert "\n" not in str(caught.value)
