"""The whole procedure on rows whose answer is known: it helps on rows it never saw, and its card comes back."""

import numpy as np
import pytest

import sharpmax
from sharpmax.fitting import calibrate


def noisy_rows(n, rows=600, seed=0):
    """Logits that see each item's value through noise; the correct item has the largest value."""
    rng = np.random.default_rng([seed, n])
    value = rng.uniform(size=(rows, n))
    return 20 * (value + rng.normal(scale=0.01, size=value.shape)), value.argmax(axis=-1)


@pytest.fixture(scope="module")
def rows():
    return [noisy_rows(n) for n in (16, 64, 256)]


@pytest.mark.parametrize(
    "options", [{}, {"form": "table", "criterion": "majority"}, {"form": "table"}, {"criterion": "majority"}]
)
def test_it_helps_on_rows_that_no_fit_saw(rows, options):
    result = calibrate(rows, **options)
    assert result.held_out["policy"]["coefficient"] > result.held_out["plain"]["coefficient"] + 0.05
    assert result.held_out["policy"]["loss"] < result.held_out["plain"]["loss"]
    assert len(result.fitted.entropy) < sum(len(correct) for _, correct in rows)


def test_a_card_comes_back_with_its_range_and_its_worth(rows, tmp_path):
    result = calibrate(rows)
    result.save(tmp_path / "card.json", model="a head", data="noisy uniform numbers")
    card = sharpmax.load_card(tmp_path / "card.json")
    assert card.policy == result.policy
    assert card.fitted_range["entropy"] == result.policy.domain
    assert card.held_out == result.held_out
    assert "criterion: coefficient" in card.notes


def test_the_same_seed_gives_the_same_fit_and_another_does_not(rows):
    assert calibrate(rows, seed=1).policy == calibrate(rows, seed=1).policy
    assert calibrate(rows, seed=1).policy != calibrate(rows, seed=2).policy


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"form": "spline"}, "polynomial, table"),
        ({"held_out": 0.0}, "between 0 and 1"),
        ({"rows": []}, "at least one pair"),
        ({"rows": (np.zeros((4, 3)), np.zeros(4, dtype=int))}, "list of pairs"),
        ({"rows": [(np.zeros((2, 3)), np.zeros(2, dtype=int))]}, "drew none"),
        ({"criterion": "vibes"}, "coefficient, majority"),
        ({"degree": True}, "degree of at least 1"),
        ({"held_out": "a"}, "between 0 and 1"),
        ({"seed": -1}, "a seed"),
        ({"bounds": 3.0}, "low < high"),
        ({"bounds": (0.1, 10.0)}, "a polynomial's beta is at least 1, got bounds from 0.1; form='table'"),
        ({"form": "table", "knots": 1}, "at least 2 knots"),
    ],
)
def test_what_does_not_fit_is_refused(rows, change, says):
    arguments = {"rows": rows, **change}
    with pytest.raises(ValueError, match=says):
        calibrate(arguments.pop("rows"), **arguments)


def test_rows_may_come_one_size_after_another(rows):
    assert calibrate(pair for pair in rows).policy == calibrate(rows).policy
