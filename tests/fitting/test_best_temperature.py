"""The best temperature of a row: the root is the maximum, and each criterion says what rightly ranked rows want."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sharpmax.core.stats import row_stats
from sharpmax.fitting import best_inverse_temperatures

BOUNDS = (1.0, 100.0)


def rows(seed, count=40, n=12):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, n)), rng.integers(0, n, count)


def coefficient(logits, correct, beta):
    z = beta[..., None] * (logits - logits.max(axis=-1, keepdims=True))
    w = np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)
    return np.take_along_axis(w, correct[..., None], axis=-1)[..., 0]


@given(st.integers(0, 2**32 - 1))
def test_no_other_temperature_within_the_bounds_gives_the_correct_item_more(seed):
    logits, correct = rows(seed)
    best = best_inverse_temperatures(logits, correct, bounds=BOUNDS)
    missed = ~best.ranked
    at_best = coefficient(logits[missed], correct[missed], best.inverse_temperature[missed])
    for beta in np.geomspace(*BOUNDS, 50):
        other = coefficient(logits[missed], correct[missed], np.full(missed.sum(), beta))
        assert np.all(other <= at_best * (1 + 1e-9))


def test_rightly_ranked_rows_have_no_best_coefficient():
    logits, _ = rows(0)
    best = best_inverse_temperatures(logits, logits.argmax(axis=-1))
    assert np.all(best.ranked)
    assert np.all(np.isnan(best.inverse_temperature))


def test_majority_is_the_smallest_temperature_that_gives_half():
    logits, _ = rows(1)
    correct = logits.argmax(axis=-1)
    best = best_inverse_temperatures(logits, correct, criterion="majority", bounds=(1.0, 1e4)).inverse_temperature
    assert np.all(coefficient(logits, correct, best) >= 0.5 - 1e-9)
    inside = best > 1
    assert inside.any()
    assert np.all(coefficient(logits[inside], correct[inside], 0.999 * best[inside]) < 0.5)


def test_entropy_is_that_of_plain_softmax_and_masked_items_count_for_nothing():
    logits, correct = rows(2)
    padded = np.concatenate([logits, np.full((len(logits), 5), -np.inf)], axis=-1)
    best, same = best_inverse_temperatures(logits, correct), best_inverse_temperatures(padded, correct)
    np.testing.assert_allclose(best.entropy, row_stats(logits).entropy)
    for a, b in zip(best, same, strict=True):
        np.testing.assert_allclose(a, b)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"logits": np.ones((4, 3), dtype=int)}, TypeError, "floating"),
        ({"correct": np.zeros(4)}, TypeError, "integer"),
        ({"correct": np.zeros(3, dtype=int)}, ValueError, "correct"),
        ({"correct": np.full(4, 3)}, ValueError, "indices from 0 to 2"),
        ({"logits": np.full((4, 3), np.nan)}, ValueError, "NaN"),
        ({"logits": np.array([[-np.inf, 0.0, 0.0]] * 4)}, ValueError, "visible"),
        ({"criterion": "vibes"}, ValueError, "coefficient, majority"),
        ({"bounds": (2.0, 1.0)}, ValueError, "low < high"),
        ({"bounds": 3.0}, ValueError, "low < high"),
        ({"bounds": "ab"}, ValueError, "low < high"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_call(change, error, says):
    arguments = {"logits": np.zeros((4, 3)), "correct": np.zeros(4, dtype=int), **change}
    with pytest.raises(error, match=says):
        best_inverse_temperatures(arguments.pop("logits"), arguments.pop("correct"), **arguments)


def test_rows_of_another_library_are_read_as_they_are():
    logits, correct = rows(2)
    tensor = torch.tensor(logits, requires_grad=True)
    for a, b in zip(
        best_inverse_temperatures(tensor, torch.tensor(correct)),
        best_inverse_temperatures(logits, correct),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    assert best_inverse_temperatures(tensor.bfloat16(), correct).entropy.shape == correct.shape
