"""Numbers that Python holds and arrays do not: huge integers, counts beyond 2^24, arrays that change under a policy."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import sharpmax.jax
import sharpmax.torch
from sharpmax import (
    Beyond,
    Constant,
    EntropyTarget,
    LengthScaled,
    LogLinear,
    Polynomial,
    Table,
    reference_attention,
    softmax,
)
from sharpmax.core.masks import query_positions
from sharpmax.core.policies import PerHead, Policy, detach
from sharpmax.torch.lengths import counted_by_position, positions
from sharpmax.torch.request import Request

HUGE = 10**400
MILLIONS = 2**24


@pytest.mark.parametrize("number", [HUGE, -HUGE, 10**5000], ids=["10^400", "-10^400", "10^5000"])
@pytest.mark.parametrize(
    "make",
    [
        Constant,
        EntropyTarget,
        LengthScaled,
        LogLinear,
        Beyond,
        lambda n: Beyond(80, n),
        LengthScaled.yarn,
        LengthScaled.log_n,
        lambda n: Polynomial((n, 1.0)),
        lambda n: Polynomial((1.0,), threshold=n),
        lambda n: Table((0.0, 1.0), (1.0, n)),
        lambda n: Table((0.0, n), (1.0, 2.0)),
        lambda n: EntropyTarget(0.5, maximum=n),
    ],
)
def test_an_integer_beyond_float_is_refused_in_one_line(make, number):
    with pytest.raises(ValueError, match="must be finite") as raised:
        make(number)
    assert len(str(raised.value)) < 250


@pytest.mark.parametrize(
    ("make", "good"),
    [
        (Constant, [1.0, 2.0]),
        (EntropyTarget, [0.5, 0.6]),
        (LengthScaled, [1.0, 2.0]),
        (LogLinear, [0.1, 0.2]),
        (lambda c: Polynomial((c, c)), [1.0, 2.0]),
        (lambda b: Table((0.0, 1.0), b), [1.0, 2.0]),
    ],
)
@pytest.mark.parametrize("kind", [np.array, list])
def test_a_policy_keeps_what_it_was_made_of(make, good, kind):
    given = kind(good)
    policy = make(given)
    before = policy.freeze()
    given[0] = -np.inf
    assert policy.freeze() == before


def test_a_policy_says_when_its_tensor_has_become_negative():
    beta = torch.tensor(1.0)
    policy = Constant(beta)
    beta.fill_(-1.0)
    with pytest.raises(ValueError, match="negative inverse temperature"):
        softmax(torch.zeros(3), policy)


def request_of(queries, keys, right):
    """Return a request of such lengths, without their memory."""
    q, k = (torch.zeros(1, 1, 1, 1).expand(1, 1, length, 1) for length in (queries, keys))
    options = {"mask": None, "bias": None, "softcap": None, "sinks": None, "dropout": 0.0, "return_stats": False}
    return Request(q, k, k, policy=None, left=None, right=right, scale=1.0, **options)


@pytest.mark.parametrize("right", [0, 3])
def test_lengths_beyond_2_to_the_24_are_rounded_once(right):
    queries, keys = 40, MILLIONS + 30
    request = request_of(queries, keys, right)
    places = np.arange(keys - queries, keys)
    seen = np.minimum(places + right + 1, keys)
    np.testing.assert_array_equal(counted_by_position(request)[0, 0].numpy(), seen.astype(np.float32))
    np.testing.assert_array_equal(positions(request)[0, 0].numpy(), places.astype(np.float32))
    got = query_positions(queries, keys, xp=np, dtype=np.float32, device="cpu")
    np.testing.assert_array_equal(got, places.astype(np.float32))


@pytest.mark.parametrize("key_heads", [0, 1, 2])
def test_zero_query_heads_are_refused_alike(key_heads):
    q, k = np.ones((1, 0, 3, 4), np.float32), np.ones((1, key_heads, 3, 4), np.float32)
    calls = (
        lambda: reference_attention(q, k, k),
        lambda: sharpmax.torch.attention(*map(torch.from_numpy, (q, k, k))),
        lambda: sharpmax.torch.row_stats(*map(torch.from_numpy, (q, k))),
        lambda: sharpmax.jax.attention(*(jnp.asarray(x).swapaxes(1, 2) for x in (q, k, k))),
        lambda: sharpmax.jax.row_stats(*(jnp.asarray(x).swapaxes(1, 2) for x in (q, k))),
    )
    for call in calls:
        with pytest.raises(ValueError, match="0 query heads cannot share"):
            call()


class Negative(Policy):
    """A user's own policy, which is wrong."""

    def __call__(self, stats, stats_at=None):
        return stats.entropy * 0 - 1.0


@pytest.mark.parametrize(
    ("wrap", "named"),
    [
        (lambda p: p, "Negative"),
        (detach, "Detached.*Negative"),
        (lambda p: PerHead([p, p]), "PerHead"),
        (lambda p: detach(PerHead([Constant(1.0), p])), "Detached"),
    ],
)
def test_a_negative_beta_is_refused_inside_other_policies_too(wrap, named):
    with pytest.raises(ValueError, match=f"{named}.* gave a negative inverse temperature"):
        softmax(np.zeros((2, 3, 5)), wrap(Negative()))


def test_a_target_that_became_nan_poisons_its_rows():
    target = torch.tensor([[0.5], [0.5]])
    policy = EntropyTarget(target)
    target[0] = math.nan
    weights = softmax(torch.randn(2, 3, 5), policy)
    assert weights[0].isnan().all()
    assert weights[1].isfinite().all()
