import numpy as np
import pytest
import torch

import sharpmax
from sharpmax import PAPER
from sharpmax.core.stats import RowStats, row_stats
from sharpmax.experiments.compare.rules import PEAK, BeyondTarget, Gated, NewtonTarget, line, rising


def test_the_rising_rule_is_the_papers_up_to_its_peak_and_never_falls():
    entropies = np.linspace(0.9, 12.0, 200)
    ours, papers = (np.asarray(policy(RowStats(entropy=entropies))) for policy in (rising(0.15), PAPER))
    below = entropies <= PEAK
    np.testing.assert_allclose(ours[below], papers[below], atol=0.01)
    assert (np.diff(ours) >= 0).all()
    assert ours[-1] == pytest.approx(ours[below][-1] + 0.15 * (12.0 - PEAK), abs=0.05)


def test_short_inputs_cannot_tell_slopes_apart():
    reachable = np.linspace(0, np.log(80), 50)
    assert np.log(80) < PEAK
    gentle, steep = (np.asarray(rising(slope)(RowStats(entropy=reachable))) for slope in (0.15, 1.0))
    np.testing.assert_array_equal(gentle, steep)


def test_rows_that_average_are_left_alone_and_rows_that_have_chosen_are_sharpened():
    n = np.full(3, 16401.0)
    stats = RowStats(entropy=np.array([0.0, 4.0, np.log(16401.0)]), count=n)
    share = 4 / np.log(16401)
    np.testing.assert_allclose(Gated(0.5)(stats), [1.0, 1 + 0.5 * 4 * (1 - share), 1.0])


def test_beyond_a_target_is_solved_for_where_rows_have_chosen():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 300, generator=generator).double()
    rows[0] *= 2.5  # has chosen
    rows[2, 70:] = -torch.inf  # is short
    rows[2] *= 2.5
    weights, stats = sharpmax.softmax(rows, BeyondTarget(1.0), return_stats=True)
    assert float(stats.entropy[0]) < 0.6 * np.log(300)
    assert float(sharpmax.entropy(stats.inverse_temperature[0] * rows[0])) == pytest.approx(1.0, abs=1e-3)
    assert stats.inverse_temperature[1:].tolist() == [1.0, 1.0]
    torch.testing.assert_close(weights[1:], torch.softmax(rows[1:], -1))


def test_a_line_rises_by_its_slope():
    rows = RowStats(entropy=np.array([0.2, 0.5, 1.5, 10.5]))
    np.testing.assert_allclose(line(0.3)(rows), [1.0, 1.0, 1.3, 4.0])


def test_a_newton_step_lowers_the_entropy_towards_its_target():
    rows = torch.randn(64, 40, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    stats = row_stats(rows, extra=("variance",))
    beta = NewtonTarget(1.0)(stats)
    beta.sum().backward()
    assert rows.grad.isfinite().all()
    after = row_stats(beta[:, None] * rows).entropy
    assert (after < stats.entropy).all()
    assert NewtonTarget(1.0)(row_stats(10 * rows.detach(), extra=("variance",))).min() == 1.0
