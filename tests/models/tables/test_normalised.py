"""Columns become comparable by the known rows alone."""

import pytest
import torch

from sharpmax.models.tables.normalised import normalised

KNOWN = 50


@pytest.fixture
def rows():
    return 7 + 3 * torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_known_rows_are_standardised_and_scaled_by_the_share_of_columns(rows):
    x = normalised(rows, KNOWN, features=8)
    assert x.shape == (60, 8)
    torch.testing.assert_close(x[:KNOWN, :4].mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(x[:KNOWN, :4].std(0), torch.full((4,), 2.0), atol=1e-4, rtol=0)
    assert not x[:, 4:].any()


def test_asked_rows_change_nothing_of_the_others(rows):
    other = rows.clone()
    other[-1] = 1e3
    torch.testing.assert_close(normalised(rows, KNOWN, 4)[:-1], normalised(other, KNOWN, 4)[:-1])


def test_a_column_that_does_not_vary_is_left_out_and_a_missing_value_is_average(rows):
    rows[:KNOWN, 1] = 5.0
    rows[3, 0] = torch.nan
    x = normalised(rows, KNOWN, 4)
    assert not x[:, 3].any()
    assert x[3, 0] == 0
    torch.testing.assert_close(x[:KNOWN, 1].std(), torch.tensor(4 / 3), atol=1e-4, rtol=0)


def test_far_values_grow_as_a_logarithm(rows):
    rows[-1, 0] = 7 + 3 * 50
    x = normalised(rows, KNOWN, 4)
    assert 4 < x[-1, 0] < 10


def test_tables_without_use_are_refused(rows):
    with pytest.raises(ValueError, match="expected at most 3 columns, got 4"):
        normalised(rows, KNOWN, 3)
    with pytest.raises(ValueError, match="expected a column that varies among the known rows"):
        normalised(torch.ones(4, 2), 3, 4)
