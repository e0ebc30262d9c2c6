"""Generated tables: the seed draws rule and rows, longer draws begin with shorter ones, and the rule can be learned."""

import numpy as np
import pytest

from sharpmax.tasks.tables import draw
from sharpmax.tasks.tables.generated import FAMILIES, NOISE


@pytest.mark.parametrize("family", FAMILIES)
def test_a_longer_draw_begins_with_a_shorter_one(family):
    short, long = draw(family, 50, seed=3), draw(family, 400, seed=3)
    np.testing.assert_array_equal(short.rows, long.rows[:50])
    np.testing.assert_array_equal(short.labels, long.labels[:50])
    assert set(long.labels) == set(range(long.classes))
    assert not np.array_equal(draw(family, 50, seed=4).rows, short.rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_class_follows_from_the_row(family, monkeypatch):
    """Without noise the same rows have the same classes, with noise about its share differ."""
    noisy = draw(family, 4000, seed=0)
    monkeypatch.setattr("sharpmax.tasks.tables.generated.NOISE", 0.0)
    clean = draw(family, 4000, seed=0)
    np.testing.assert_array_equal(noisy.rows, clean.rows)
    expected = NOISE * (1 - 1 / clean.classes)
    assert abs((noisy.labels != clean.labels).mean() - expected) < 4 * (expected / 4000) ** 0.5


def test_an_unknown_table_is_refused():
    with pytest.raises(ValueError, match="unknown table 'irises'; there are: flights-late"):
        draw("irises", 10, seed=0)
