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
