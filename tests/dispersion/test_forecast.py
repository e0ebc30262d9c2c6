"""Forecasts of heads whose fate is known, and a rehearsal that knows when not to be believed."""

import warnings

import numpy as np
import pytest

from sharpmax.dispersion import forecast, measure
from sharpmax.dispersion.crowd import far_keys, mean_of_rows, observe_logits
from sharpmax.dispersion.forecast import METHODS, Rehearsal, predict, rehearse

LENGTHS = [16, 32, 64, 128, 256, 512]


def crowd(n, rng, heads=12, rows=40):
    """Return heads that give their first key a lead of 1 to 5 over a crowd: entropy is no line in log n."""
    logits = rng.normal(0, 0.5, (heads, rows, n))
    logits[..., 0] = np.linspace(1.0, 5.0, heads)[:, None]
    return logits


def test_a_uniform_row_stays_uniform():
    rows = observe_logits(np.zeros((1, 1, 2, 64)))
    entropy, weight = rows.grown(8)
    np.testing.assert_allclose(entropy, np.log(512))
    np.testing.assert_allclose(weight, 1 / 512)


def test_a_needle_over_a_crowd_at_zero_is_forecast_exactly():
    logits = np.zeros((1, 1, 1, 100))
    logits[..., 0] = 6.0
    rows = observe_logits(logits)
    weight = 1 / (1 + 799 * np.exp(-6.0))
    entropy, largest = rows.grown(8)
    assert largest.item() == pytest.approx(weight)
    assert entropy.item() == pytest.approx(-weight * np.log(weight) - (1 - weight) * np.log((1 - weight) / 799))
    assert rows.times_until(0.5).item() * 100 == pytest.approx(1 + np.exp(6.0))


@pytest.mark.parametrize("exponent", [0.3, 1.0, 1.6])
def test_a_size_is_the_one_that_growing_reaches_whatever_the_exponent(exponent):
    logits = np.zeros((1, 1, 1, 100))
    logits[..., 0] = 6.0
    rows = observe_logits(logits)
    at = rows.times_until(0.5, np.full((1, 1), exponent)).item()
    assert rows.grown(at, exponent)[1].item() == pytest.approx(0.5)
    logits[..., 1:] = -60.0  # a head that nothing makes give way
    assert np.isinf(observe_logits(logits).times_until(0.5, np.full((1, 1), exponent))).all()


def test_growing_once_is_growing_twice():
    rows = observe_logits(np.random.default_rng(0).normal(size=(1, 1, 5, 64)))
    # Copies of the far keys are all that is added: the formula must be that of the very row with the copies in it.
    logits = np.random.default_rng(0).normal(size=(1, 1, 5, 64))
    far = far_keys(np.full(5, 63), np.ones((5, 64), dtype=bool))
    copies = np.concatenate([logits, *[logits[..., far[0]]] * 6], axis=-1)
    times = 1 + 6 * far[0].sum() / 64
    np.testing.assert_allclose(rows.grown(times)[0], observe_logits(copies).entropy)
    np.testing.assert_allclose(rows.grown(times)[1], observe_logits(copies).largest_weight)


def test_far_keys_of_an_encoder_lie_on_both_sides():
    far = far_keys(np.array([8]), np.ones((1, 17), dtype=bool))[0]
    assert np.flatnonzero(far).tolist() == [1, 2, 3, 4, 12, 13, 14, 15]


def test_a_hidden_key_is_never_far():
    visible = np.array([[False, True, True, True, True, True]])
    assert not far_keys(np.array([5]), visible)[0, :2].any()


def test_a_crowd_is_forecast_and_believed():
    rng = np.random.default_rng(1)
    found = measure(lambda n: crowd(n, rng), LENGTHS)
    said = forecast(found, times=[8])
    assert said.believed
    actual = measure(lambda n: crowd(n, rng), [4096]).entropy[..., -1]
    np.testing.assert_allclose(said.entropy[..., 0], actual, atol=0.1)
    assert np.all(said.kinds == "crowd")
    verdict = said.rehearsal.to_json()
    assert verdict["mean_absolute_error"]["law"] < 0.2
    assert max(verdict["p"].values()) < 0.05
    assert verdict["rate_agreement"]["law"] >= 0.7


def test_a_head_that_looks_at_its_neighbours_keeps_its_entropy():
    def local(n):
        logits = np.full((1, 8, n), -30.0)
        logits[..., -4:] = np.random.default_rng(n).normal(size=(1, 8, 4))
        return logits

    said = forecast(measure(local, LENGTHS), times=[32])
    assert said.kinds.item() == "local"
    assert said.entropy.item() == pytest.approx(measure(local, [512]).entropy.item(), abs=0.4)


def test_a_law_that_fails_its_rehearsal_gives_way_to_persistence():
    # Entropy that rises, then falls back: no law can know it.
    def turning(n):
        return np.random.default_rng(n).normal(size=(2, 30, n)) * (1.0 if n < 512 else 40.0)

    found = measure(turning, LENGTHS)
    said = forecast(found, times=[2, 8])
    assert not said.believed
    assert said.to_json()["shown"] == "persistence"
    np.testing.assert_array_equal(said.entropy[..., 0], found.entropy[..., -1])


def judged(forecasts, found=None):
    """Return a rehearsal of one layer whose heads were forecast so; what was found is 1 … 12 unless given."""
    found = np.arange(1.0, 13.0) if found is None else found
    made = {name: np.asarray(values, dtype=float)[None] for name, values in forecasts.items()}
    return Rehearsal(64, 512, made, made, found[None], found[None])


def test_a_law_is_not_believed_for_what_may_be_chance():
    found = np.arange(1.0, 13.0)
    sure = judged({"law": found + 0.1, "persistence": found * 0, "line": found + 0.5 + 0.01 * found})
    assert sure.believed
    # The same mean error as before in the law's favour, but by one head alone.
    lucky = found + 0.1
    lucky[0] += 5.0
    unsure = judged({"law": found + 0.1, "persistence": found * 0, "line": lucky})
    assert unsure.errors("law").mean() < unsure.errors("line").mean()
    assert unsure.p_values["line"] > 0.05
    assert not unsure.believed


def test_a_law_that_does_not_know_which_head_changes_is_not_believed():
    found = 5.0 + 0.01 * np.arange(12.0)
    said = {"law": 5.0 + 0.01 * np.arange(12.0)[::-1], "persistence": found * 0, "line": found + 1 + 0.1 * found}
    made = judged(said, found)
    assert max(made.p_values.values()) < 0.05
    assert made.rate_agreement() < 0
    assert not made.believed


def test_the_interval_of_the_rehearsal_holds_what_it_says():
    found = measure(lambda n: crowd(n, np.random.default_rng(n)), LENGTHS)
    made = rehearse(found)
    assert set(made.entropy) == set(METHODS)
    said = forecast(found, times=[8])
    assert said.believed
    assert np.mean(np.abs(made.entropy["law"] - made.found_entropy) <= said.reach) >= 0.8
    assert np.mean(np.abs(made.largest_weight["law"] - made.found_weight) <= said.weight_reach) >= 0.8


def test_too_few_lengths_leave_nothing_to_rehearse():
    found = measure(lambda n: np.zeros((1, 2, n)), [8, 16])
    assert rehearse(found) is None
    assert not forecast(found).believed


def test_rows_that_were_not_observed_stay_out():
    np.testing.assert_allclose(mean_of_rows(np.array([[1.0, 3.0, np.nan], [np.nan] * 3])), [2.0, np.nan])


def test_a_row_does_not_shrink():
    with pytest.raises(ValueError, match="1 times"):
        observe_logits(np.zeros((1, 1, 1, 8))).grown(0.5)


def test_each_head_is_observed_by_the_keys_that_it_sees():
    logits = np.random.default_rng(0).normal(size=(1, 2, 3, 32))
    logits[:, 1, :, :28] = -np.inf  # a window, of this head alone
    both, alone = observe_logits(logits), observe_logits(logits[:, 1:])
    for name in ("far_weight", "far_entropy", "keys_per_far_key", "largest_weight"):
        np.testing.assert_allclose(getattr(both, name)[:, 1:], getattr(alone, name))


def test_rows_that_see_nothing_take_no_part_in_a_forecast():
    def logits(n, hidden):
        drawn = crowd(n, np.random.default_rng(n), heads=2, rows=6)
        drawn[:, :hidden] = -np.inf
        return drawn if hidden else drawn[:, 2:]

    some, without = (measure(lambda n, hidden=hidden: logits(n, hidden), LENGTHS) for hidden in (2, 0))
    np.testing.assert_array_equal(some.entropy, without.entropy)
    for method, (entropy, weight) in zip(METHODS, predict(without, 3, 512), strict=True):
        got = dict(zip(METHODS, predict(some, 3, 512), strict=True))[method]
        np.testing.assert_allclose(got[0], entropy)
        np.testing.assert_allclose(got[1], weight)
    assert forecast(some).kinds.tolist() == forecast(without).kinds.tolist()


def test_heads_that_some_lengths_pass_by_are_left_out_of_the_rehearsal():
    def late(n, heads):
        drawn = crowd(n, np.random.default_rng(n), heads=6, rows=10)
        drawn[:heads] = -np.inf if n < 64 else drawn[:heads]
        return drawn

    found = measure(lambda n: late(n, 1), LENGTHS)
    rehearsed = rehearse(found)
    assert rehearsed is not None
    assert {rehearsed.errors(name).size for name in METHODS} == {5}
    assert forecast(found).to_json()["rehearsal"]["fitted_up_to"] == 64
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert rehearse(measure(lambda n: late(n, 6), LENGTHS)) is None


def test_logits_that_are_not_finite_are_refused():
    for poison in (np.nan, np.inf):
        with pytest.raises(ValueError, match=r"NaN or [+]inf at length 4"):
            measure(lambda n, poison=poison: np.array([[[0.0] * (n - 1) + [poison], [0.0] * n]]), [4, 8])


def test_a_forecast_at_no_length_is_refused():
    found = measure(lambda n: crowd(n, np.random.default_rng(n), heads=2, rows=4), LENGTHS)
    with pytest.raises(ValueError, match="at least one multiple"):
        forecast(found, times=())
