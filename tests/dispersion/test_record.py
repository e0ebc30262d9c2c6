"""Dispersion from logits: heads whose law is known, and a fit that recovers it and foretells a length it never saw."""

import numpy as np
import pytest
import torch

from sharpmax.dispersion import Dispersion, fit_decay, measure
from sharpmax.dispersion.rates import fastest_losing, rank_correlation, sharpest

LENGTHS = [16, 64, 256, 1024]


def two_heads(n):
    """An even head, whose entropy is log n, and one whose single leader outweighs any number of others."""
    even, leader = np.zeros((3, n)), np.zeros((3, n))
    leader[:, 0] = 60.0
    return np.stack([even, leader])


def test_known_heads_measure_as_they_must():
    found = measure(two_heads, LENGTHS)
    np.testing.assert_allclose(found.entropy[0, 0], np.log(LENGTHS))
    np.testing.assert_allclose(found.values["relative_entropy"][0, 0], 1)
    np.testing.assert_allclose(found.values["support"][0, 0], LENGTHS)
    np.testing.assert_allclose(found.values["largest_weight"][0, 0], 1 / np.asarray(LENGTHS))
    np.testing.assert_allclose(found.values["first_mass"][0, 1], 1)
    np.testing.assert_allclose(found.values["spread"][0, :, -1], [0, 60])
    assert found.most_spread.tolist() == [[0, 60]]
    assert found.spread_summary() == pytest.approx({"min": 0, "max": 60, "mean": 30, "sd": np.std([0, 60], ddof=1)})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_logits_of_a_model_in_training_measure_as_numpy_s_do(dtype):
    found = measure(lambda n: torch.tensor(two_heads(n), dtype=dtype, requires_grad=True), LENGTHS)
    for name, values in measure(two_heads, LENGTHS).values.items():
        np.testing.assert_allclose(found.values[name], values, rtol=1e-5)


@pytest.mark.parametrize(
    ("logits_at", "lengths", "error", "message"),
    [
        (two_heads, [], ValueError, "at least one length"),
        (lambda n: [[[0.0] * n]], [4], TypeError, "logits must be an array"),
        (
            lambda n: np.zeros((2, 3, n + 1)),
            [4],
            ValueError,
            r"expected logits \(heads, rows, 4\), got shape \(2, 3, 5\)",
        ),
        (lambda n: np.zeros((2, 0, n)), [4], ValueError, r"got shape \(2, 0, 4\)"),
        (lambda n: np.zeros((1, n)), [4], ValueError, r"heads, rows, 4"),
    ],
)
def test_what_cannot_be_measured_is_refused(logits_at, lengths, error, message):
    with pytest.raises(error, match=message):
        measure(logits_at, lengths)


def test_one_layer_has_no_order_to_foretell():
    fit = fit_decay(measure(two_heads, LENGTHS))
    assert fit.layer_agreement is None
    assert fit.to_json()["layer_agreement"] is None


def test_the_rate_is_recovered_and_forecasts_the_held_out_length():
    fit = fit_decay(measure(two_heads, LENGTHS))
    np.testing.assert_allclose(fit.rate, [[1, 0]], atol=1e-9)
    assert fit.held_out == 1024
    assert fit.error < 1e-9
    found = measure(two_heads, LENGTHS)
    assert [head["head"] for head in sharpest(found)] == [1, 0]
    assert [head["head"] for head in fastest_losing(found, fit.rate)] == [0, 1]


def test_layers_are_ranked_by_what_they_will_lose():
    values = {name: np.ones((3, 1, 4)) for name in measure(two_heads, LENGTHS).values}
    rates = np.asarray([0.2, 0.9, 0.5])
    values["entropy"] = 1 + (rates[:, None] * np.log(LENGTHS))[:, None, :]
    fit = fit_decay(Dispersion(LENGTHS, values, np.ones((3, 1)), [1] * 4))
    assert fit.layers_predicted == fit.layers_actual == [1, 2, 0]
    assert fit.layer_agreement == pytest.approx(1)


def test_a_forecast_stands_beside_persistence():
    """Where layers keep their order, persistence has it too; where they cross, only the line does."""
    for rates, levels, beats in (([0.2, 0.9, 0.5], [1, 1, 1], False), ([0.9, 0.2, 0.5], [-2.5, 1.0, 0.0], True)):
        values = {name: np.ones((3, 1, 4)) for name in measure(two_heads, LENGTHS).values}
        values["entropy"] = (np.asarray(levels)[:, None] + np.outer(rates, np.log(LENGTHS)))[:, None, :]
        fit = fit_decay(Dispersion(LENGTHS, values, np.ones((3, 1)), [1] * 4))
        told = fit.to_json()
        assert told["layer_agreement"] == pytest.approx(1)
        assert told["rate_agreement"] == pytest.approx(1)
        assert told["beats_persistence"] == beats == (told["persistence_agreement"] < 0.99)
        before = values["entropy"][:, 0, -2]
        assert told["persistence_agreement"] == pytest.approx(rank_correlation(before, values["entropy"][:, 0, -1]))
        assert told["persistence_error"] == pytest.approx(np.mean(values["entropy"][:, 0, -1] - before))
        assert told["mean_absolute_error"] == pytest.approx(0, abs=1e-9)


def test_layers_that_never_ran_are_in_no_ranking():
    """As those that read images do not, on text; and a layer may have fewer heads than another."""
    values = {name: np.ones((4, 2, 3)) for name in measure(two_heads, LENGTHS).values}
    rates = np.asarray([[0.2, np.nan], [np.nan, np.nan], [0.9, 0.7], [0.5, 0.5]])
    values["entropy"] = 1 + rates[..., None] * np.log([4, 16, 64])
    values["relative_entropy"] = values["entropy"] / 9
    found = Dispersion([4, 16, 64], values, np.where(np.isnan(rates), np.nan, 1.0), [1] * 3)
    fit = fit_decay(found)
    assert fit.layers_predicted == fit.layers_actual == [2, 3, 0]
    assert fit.layer_agreement == pytest.approx(1)
    assert fit.to_json()["rate"][1] == [None, None]
    assert [(head["layer"], head["head"]) for head in fastest_losing(found, fit.rate)][:2] == [(2, 0), (2, 1)]
    assert len(fastest_losing(found, fit.rate)) == len(sharpest(found)) == 5


def test_rank_correlation_is_spearmans():
    from scipy import stats

    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 5, 30), rng.normal(size=30)
    assert rank_correlation(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert rank_correlation([1, 1], [1, 2]) == 0


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="three lengths"):
        fit_decay(measure(two_heads, [4, 8]))


def test_json_holds_no_nan():
    values = {name: np.full((1, 1, 1), np.nan) for name in measure(two_heads, LENGTHS).values}
    content = Dispersion([4], values, np.full((1, 1), np.nan), [0]).to_json()
    assert content["entropy"] == [[[None]]]
    assert content["most_spread"] == [[None]]


def test_a_record_is_read_back_as_it_was_written():
    found = measure(two_heads, LENGTHS).to_json()
    assert Dispersion.from_json(found).to_json() == found
    holes = {**found, "entropy": [[[None] * 4] * 2]}
    assert Dispersion.from_json(holes).to_json() == holes


def test_lengths_that_do_not_rise_are_refused():
    for lengths in ([64, 16, 4], [4, 4, 16]):
        with pytest.raises(ValueError, match="lengths that rise"):
            measure(two_heads, lengths)
    record = measure(two_heads, LENGTHS).to_json()
    with pytest.raises(ValueError, match="lengths that rise"):
        Dispersion.from_json({**record, "lengths": LENGTHS[::-1]})


def test_lengths_may_be_an_array_or_come_one_by_one():
    for lengths in (np.array(LENGTHS), iter(LENGTHS)):
        np.testing.assert_array_equal(measure(two_heads, lengths).entropy, measure(two_heads, LENGTHS).entropy)


def test_a_head_that_sees_nothing_is_nan_without_a_warning():
    found = measure(lambda n: np.where(np.arange(2)[:, None, None] == 0, -np.inf, two_heads(n)), [4, 8])
    assert np.isnan(found.entropy[0, 0]).all()
    assert np.isnan(found.most_spread[0, 0])
    assert np.isfinite(found.entropy[0, 1]).all()


def test_what_has_no_rank_is_refused():
    for one, other in (([1, 2, np.nan], [1, 2, 3]), ([1, 2, 3], [5])):
        with pytest.raises(ValueError, match="without a NaN"):
            rank_correlation(one, other)
