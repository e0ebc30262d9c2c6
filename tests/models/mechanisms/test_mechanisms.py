"""Every mechanism: equal to a plain formulation row by row in float64, by finite differences too, causal, streamed."""

import math

import entmax as published
import numpy as np
import pytest
import torch

from sharpmax.core.policies import LengthScaled
from sharpmax.experiments.compare.arms import ARMS
from sharpmax.models.mechanisms import Differential, Entmax, Hierarchical, Selective, Sharpened, TopK, base
from sharpmax.models.mechanisms.entmax import entmax

HEADS, WIDTH = 2, 4
SLOPES = torch.tensor([0.0, 0.5]).double()
TRAINED = [name for name, arm in ARMS.items() if arm.weights_of is None]


def tensors(keys=7, batch=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, batch, HEADS, keys, WIDTH, generator=generator).double() * 1.5 for _ in range(3)]


def learned_by(mechanism, seed=1):
    generator = torch.Generator().manual_seed(seed)
    starts = mechanism.starts(HEADS, WIDTH, 1)
    return {
        n: s[None].double() + 0.3 * torch.rand(1, *s.shape, generator=generator).double() for n, s in starts.items()
    }


def softmax(row):
    weights = np.exp(row - row.max())
    return weights / weights.sum()


def bisected(row, alpha):
    """Entmax by bisection on tau, to the last bit."""
    z, p = (alpha - 1) * row, 1 / (alpha - 1)
    low, high = z.max() - 1, z.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (np.maximum(z - middle, 0) ** p).sum() > 1 else (low, middle)
    return np.maximum(z - low, 0) ** p


def sigma(x):
    return 1 / (1 + np.exp(-x))


def sticks(row):
    left, weights = 1.0, []
    for logit in row[::-1]:
        weights.append(left * sigma(logit))
        left *= 1 - sigma(logit)
    return np.array(weights[::-1])


def blocks(row):
    parts = [row[i : i + 2] for i in range(0, len(row), 2)]
    outer = softmax(np.array([part.max() for part in parts]))
    return np.concatenate([weight * softmax(part) for weight, part in zip(outer, parts, strict=True)])


def best(row):
    kept = np.argsort(row)[-3:]
    weights = np.zeros(len(row))
    weights[kept] = softmax(row[kept])
    return weights


PLAIN = {
    "softmax": softmax,
    "entmax": lambda row: bisected(row, 1.5),
    "sparsemax": lambda row: bisected(row, 2.0),
    "sigmoid": lambda row: sigma(row - math.log(len(row))),
    "stick-breaking": sticks,
    "off-by-one": lambda row: np.exp(row) / (1 + np.exp(row).sum()),
    "ssmax-fixed": lambda row: softmax(0.43 * math.log(len(row)) * row),
    "top-k": best,
    "hierarchical": blocks,
}


def plain_logits(q, k, head, i):
    apart = np.arange(i, -1, -1)
    return k[: i + 1] @ q[i] / math.sqrt(q.shape[1]) - float(SLOPES[head]) * apart


def by_rows(weigh, q, k, v):
    """Attend with a function of one row of visible logits."""
    out = np.zeros(q.shape)
    for s, b, h, i in np.ndindex(q.shape[:-1]):
        out[s, b, h, i] = weigh(plain_logits(q[s, b, h], k[s, b, h], h, i), q[s, b, h, i], h) @ v[s, b, h, : i + 1]
    return out


def mechanism_of(name):
    return {"top-k": TopK(3), "hierarchical": Hierarchical(2)}.get(name, ARMS[name].mechanism)


@pytest.mark.parametrize("name", PLAIN)
def test_it_is_its_plain_formulation(name):
    q, k, v = tensors()
    found = mechanism_of(name).attend(q, k, v, SLOPES, {})
    expected = by_rows(lambda row, query, head: PLAIN[name](row), q.numpy(), k.numpy(), v.numpy())
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "weigh"), [("query-ssmax", softmax), ("asentmax", lambda row: bisected(row, 1.5))])
def test_adaptive_scales_read_query_and_length(name, weigh):
    mechanism = ARMS[name].mechanism
    learned = learned_by(mechanism)
    q, k, v = tensors()

    def scaled(row, query, head):
        beta, gamma = (float(learned[part][0, head].numpy() @ query) for part in ("beta", "gamma"))
        scale = 1 + math.log1p(math.exp(beta)) * math.log(max(2, len(row))) ** (3 * math.tanh(gamma))
        return weigh(scale * row)

    expected = by_rows(scaled, q.numpy(), k.numpy(), v.numpy())
    np.testing.assert_allclose(mechanism.attend(q, k, v, SLOPES, learned).numpy(), expected, rtol=1e-9, atol=1e-12)


def test_linear_attention_is_its_recurrence():
    """The sums of φ(k)vᵀ and φ(k), which fade by exp(-slope) per place."""
    q, k, v = tensors()
    phi = torch.nn.functional.elu
    found = ARMS["linear"].mechanism.attend(q, k, v, SLOPES, {})
    fade = (-SLOPES).exp()[:, None, None]
    state, total = torch.zeros(1, 2, HEADS, WIDTH, WIDTH).double(), torch.zeros(1, 2, HEADS, WIDTH, 1).double()
    for i in range(q.shape[-2]):
        feature = (phi(k[..., i, :]) + 1)[..., None]
        state, total = fade * state + feature * v[..., i : i + 1, :], fade * total + feature
        asked = (phi(q[..., i, :]) + 1)[..., None, :]
        torch.testing.assert_close(found[..., i : i + 1, :], asked @ state / (asked @ total))


def test_differential_attention_subtracts_a_share():
    q, k, v = tensors()
    learned = {"share": torch.tensor([[[0.3], [0.6]]]).double()}
    found = Differential().attend(q, k, v, SLOPES, learned).numpy()
    q, k, v = q.numpy(), k.numpy(), v.numpy()
    for s, b, h, i in np.ndindex(q.shape[:-1]):
        one, other = (
            softmax(plain_logits(q[s, b, h][:, part], k[s, b, h][:, part], h, i)) for part in (slice(0, 2), slice(2, 4))
        )
        out = (one - float(learned["share"][0, h]) * other) @ v[s, b, h, : i + 1]
        rms = math.sqrt((out**2).mean() + np.finfo(np.float64).eps)
        np.testing.assert_allclose(found[s, b, h, i], out / rms, rtol=1e-9)


def test_selective_attention_subtracts_what_earlier_queries_marked():
    q, k, v = tensors()
    found = Selective().attend(q, k, v, SLOPES, {}).numpy()
    q, k, v = q.numpy(), k.numpy(), v.numpy()
    for s, b in np.ndindex(q.shape[:2]):
        marks = np.zeros(q.shape[3])
        for i in range(q.shape[3]):
            for h in range(HEADS):
                row = plain_logits(q[s, b, h], k[s, b, h], h, i) - marks[: i + 1]
                np.testing.assert_allclose(found[s, b, h, i], softmax(row) @ v[s, b, h, : i + 1], rtol=1e-9)
            first = plain_logits(q[s, b, 0], k[s, b, 0], 0, i)
            marks[1:i] += np.maximum(first[1:i], 0)


def test_every_mechanism_of_its_own_is_formulated_above():
    ours = {
        type(ARMS[name].mechanism)
        for name in (*PLAIN, "query-ssmax", "asentmax", "linear", "differential", "selective")
    }
    theirs = {type(arm.mechanism) for arm in ARMS.values()}
    assert {kind.__name__ for kind in theirs - ours} == {
        "LearnedSSMax",
        "LearnedLogLinear",
        "Crowded",
    }  # in their own tests


@pytest.fixture(params=TRAINED)
def trained(request):
    """Every mechanism that is trained, and numbers that it may have learned."""
    mechanism = mechanism_of(request.param)
    return mechanism, learned_by(mechanism)


def test_gradients_are_finite_differences(trained):
    mechanism, learned = trained
    inputs = [t[:, :1].clone().requires_grad_() for t in tensors(keys=5)]
    numbers = [value.clone().requires_grad_() for value in learned.values()]

    def attend(q, k, v, *values):
        return mechanism.attend(q, k, v, SLOPES, dict(zip(learned, values, strict=True)))

    assert torch.autograd.gradcheck(attend, (*inputs, *numbers), atol=1e-6)


def test_it_is_causal(trained):
    mechanism, learned = trained
    q, k, v = tensors()
    before = mechanism.attend(q, k, v, SLOPES, learned)
    for tensor in (q, k, v):
        tensor[..., -1, :] += 3.0
    after = mechanism.attend(q, k, v, SLOPES, learned)
    torch.testing.assert_close(before[..., :-1, :], after[..., :-1, :])
    assert not torch.allclose(before[..., -1, :], after[..., -1, :])


def test_streaming_in_blocks_is_the_whole(trained, monkeypatch):
    mechanism, learned = trained
    q, k, v = tensors()
    whole = mechanism.attend(q, k, v, SLOPES, learned)
    monkeypatch.setattr(base, "ENTRIES_AT_ONCE", 2 * HEADS * 7 * 3)  # three rows at once
    torch.testing.assert_close(mechanism.stream(q, k, v, SLOPES, learned, torch.float64), whole)
    if not mechanism.needs_every_query:
        tail = mechanism.stream(q[..., -2:, :], k, v, SLOPES, learned, torch.float64)
        torch.testing.assert_close(tail, whole[..., -2:, :])


def test_float32_has_finite_gradients_at_far_logits(trained):
    mechanism, numbers = trained
    learned = {n: value.float() for n, value in numbers.items()}
    inputs = [(20 * t).float().requires_grad_() for t in tensors(keys=12)]
    mechanism.attend(*inputs, SLOPES.float(), learned).square().sum().backward()
    assert all(t.grad.isfinite().all() for t in inputs)


@pytest.mark.parametrize(("alpha", "theirs"), [(1.5, published.entmax15), (2.0, published.sparsemax)])
@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
def test_entmax_is_the_published_packages(alpha, theirs, spread):
    rows = (spread * torch.randn(6, 300, generator=torch.Generator().manual_seed(0)).double()).requires_grad_()
    ours = entmax(rows, alpha)
    expected = theirs(rows, dim=-1)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-9)
    weights = torch.randn(6, 300, generator=torch.Generator().manual_seed(1)).double()
    gradients = [torch.autograd.grad((w * weights).sum(), rows, retain_graph=True)[0] for w in (ours, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-8)


def test_entmax_of_many_equal_logits_is_even():
    torch.testing.assert_close(entmax(torch.zeros(1, 16384), 1.5), torch.full((1, 16384), 1 / 16384))


@pytest.mark.parametrize("wrong", [lambda: Entmax(2.5), lambda: TopK(0), lambda: Hierarchical(0)])
def test_numbers_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="expected"):
        wrong()


def test_a_policy_of_the_position_is_trained_as_it_is_asked():
    q, k, v = tensors(keys=9)
    mechanism = Sharpened(LengthScaled.llama4(3))
    whole = mechanism.attend(q[..., 2:, :], k, v, SLOPES, {})
    streamed = mechanism.stream(q[..., 2:, :], k, v, SLOPES, {}, torch.float64)
    torch.testing.assert_close(whole, streamed)
    rows = mechanism.logits(q, k, SLOPES, {})[0, 1, 0, 8].numpy()  # position 8 is the ninth: floor(9/3) = 3
    weights = mechanism.weights(q, k, SLOPES, {})[0, 1, 0, 8].numpy()
    np.testing.assert_allclose(weights, softmax((1 + 0.1 * math.log(4)) * rows), rtol=1e-12)
