"""Differences are paired by asked row, then over tables; the verdict says what the intervals say."""

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_rel

from sharpmax.experiments.tables.page import against_table, verdict
from sharpmax.experiments.tables.plan import QUICK
from sharpmax.experiments.tables.summary import summarise

ENTROPIES = [[1.0, 2.0]]


def answers(better: float):
    """Two arms on three tables of 128 rows; the card is better by about so many nats."""
    drawn = np.random.default_rng(0)
    found = {}
    for table, _ in QUICK.tables:
        plain = drawn.random(40) + 1
        own = plain - better - 0.01 * drawn.random(40)
        found[f"128-{table}-plain"] = {
            "loss": plain.tolist(), "right": [1, 0] * 20, "said": np.log([[0.8, 0.2]] * 40).tolist(),
            "wanted": [0] * 40, "seconds": 1.0,
            "entropies": ENTROPIES,
        }  # fmt: skip
        found[f"128-{table}-card"] = {"loss": own.tolist(), "right": [1, 1] * 20, "seconds": 1.0}
    return found


def test_rows_are_paired_and_then_tables():
    given = answers(0.1)
    found = summarise(QUICK, given, 2.0)
    pairs = {t: (given[f"128-{t}-card"]["loss"], given[f"128-{t}-plain"]["loss"]) for t, _ in QUICK.tables}
    for table, pair in pairs.items():
        cell = found["cells"]["128"][table]["card"]["against"]["plain"]
        assert cell["loss"]["interval"] == pytest.approx(list(ttest_rel(*pair).confidence_interval()))
        assert cell["accuracy"]["difference"] == 0.5
    over = found["over_tables"]["128"]["card"]["plain"]
    apart = [np.subtract(*pair).mean() for pair in pairs.values()]
    assert over["tables"] == 3
    assert over["loss"]["interval"] == pytest.approx(list(ttest_1samp(apart, 0).confidence_interval()))
    odds = 0.8**0.5 / (0.8**0.5 + 0.2**0.5)
    assert found["cells"]["128"]["trees"]["scaled"]["loss"] == pytest.approx(-np.log(odds))
    assert found["entropies"] == {"128": {table: ENTROPIES for table, _ in QUICK.tables}}


@pytest.mark.parametrize(("better", "side"), [(0.1, "lower than"), (-0.1, "higher than")])
def test_the_verdict_follows_the_interval(better, side):
    metrics = {"summary": summarise(QUICK, answers(better), None)}
    said = f"The loss of a fitted slope per head is {side} that of plain softmax at 128 rows."
    assert verdict(metrics, QUICK).startswith(said)
    assert against_table(metrics, "plain", "loss").header[1] == "128 rows, 3 tables"


def test_a_cell_of_fewer_tables_than_its_column_says_so():
    given = answers(0.1)
    for table in ("waves", "clusters"):
        card = given[f"128-{table}-card"]
        given[f"128-{table}-subset"] = {**card, "loss": card["loss"][::-1]}
    shown = against_table({"summary": summarise(QUICK, given, None)}, "plain", "loss")
    assert shown.header[1] == "128 rows, 3 tables"
    card, fewer = (row[1] for row in shown.rows)
    assert "tables" not in card
    assert fewer.endswith(", tables: 2")
