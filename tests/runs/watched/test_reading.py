"""A reading of no rows and of few: what can be asked of it."""

import numpy as np
import pytest

from sharpmax.runs.watched import Reading
from sharpmax.runs.watched.reading import BINS


@pytest.mark.parametrize("share", [-1.0, 2.0, float("nan")])
def test_a_share_that_no_rows_can_have_is_refused(share):
    bins = np.zeros((1, BINS))
    bins[0, 64] = 10
    reading = Reading((1,), np.zeros(1), np.ones((1, 6)), bins)
    assert 1.0 <= reading.quantile(0.5)[0] <= 1.032
    with pytest.raises(ValueError, match="a share of the rows from 0 to 1"):
        reading.quantile(share)


def test_the_lowest_entropy_lies_where_the_first_rows_bin_begins():
    bins = np.zeros((2, BINS))
    bins[0, 64] = 10
    found = Reading((2,), np.zeros(2), np.ones((2, 6)), bins).quantile(0.0)
    assert found[0] == 1.0
    assert np.isnan(found[1])
