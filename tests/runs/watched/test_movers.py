"""What a record shows: the head that moved first, the step at which the loss rose, where a clip acted."""

import numpy as np
import pytest

from sharpmax.runs.watched.movers import clips, first_moves, loss_path, loss_rise, losses
from sharpmax.runs.watched.record import Recorded


def record(maximum, share=None, scaled=None, loss=None):
    """Return a record of one layer: arrays (readings, heads), a reading every ten steps."""
    steps = []
    for i, row in enumerate(maximum):
        step = {"step": 10 * i, "maximum": [list(row)], "relative_entropy": [list(share[i]) if share else [0.5] * 2]}
        if scaled and min(scaled[i]) < 1:
            step["scaled"] = [list(scaled[i])]
        if loss is not None:
            step["loss"] = loss[i]
        steps.append(step)
    return Recorded({"layers": ["a"], "heads": [len(maximum[0])], "every": 10}, steps)


def test_the_head_that_grows_first_is_first():
    grows = [[3.0, 3.0]] * 4 + [[3.0, 9.0], [4.0, 20.0], [10.0, 40.0], [30.0, 80.0]]
    first, second = first_moves(record(grows))
    assert (first.step, first.head, second.step, second.head) == (40, 1, 60, 0)
    assert str(first) == "layer 0, head 1: largest logit went from 3 to 9 by step 40"


def test_one_reading_alone_is_no_move():
    assert first_moves(record([[3.0, 3.0]] * 4 + [[3.0, 30.0]] + [[3.0, 3.0]] * 3)) == []


def test_an_entropy_that_halves_is_a_move():
    share = [[0.8, 0.8]] * 4 + [[0.8, 0.39]] * 3
    (move,) = first_moves(record([[1.0, 1.0]] * 7, share))
    assert (move.step, move.head, move.what) == (40, 1, "entropy as a share of log n")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([4.0, 2.0, 1.0, 0.9, 0.8], None),
        ([4.0, 2.0, 1.0, 3.0, 3.5], 3),
        ([4.0, 2.0, 3.5, 1.0, 0.9], None),
        ([4.0, 2.0, np.inf, np.inf, np.inf], 2),
        ([np.nan, np.nan, 4.0, np.nan, np.nan, 3.9, np.nan], None),  # not known: as before a Trainer logs its first
        ([np.nan, 4.0, 1.0, np.nan, 3.5, np.nan, 3.6], 4),
        ([np.nan, np.nan], None),
    ],
)
def test_the_loss_has_risen_when_it_stays_up(values, expected):
    assert loss_rise(range(len(values)), values) == expected


def test_a_loss_that_is_not_finite_is_infinite():
    assert losses(record([[1.0]] * 2, loss=[1.0, None])).tolist() == [1.0, np.inf]
    assert losses(record([[1.0]] * 2)) is None


def test_clips_are_counted_per_head():
    acted = clips(record([[1.0, 1.0]] * 4, scaled=[[1, 1], [1, 0.5], [1, 0.9], [1, 1]]))
    assert acted == [{"layer": 0, "head": 1, "times": 2, "first": 10, "last": 20, "smallest": 0.5}]


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        ([5.7, 5.78, 5.83, 5.75, 5.70], "from 5.7 (step 0) to 5.83 (step 20), and to 5.7 at the end"),
        ([5.0, 4.0, 4.5, 4.9], "from 4 (step 10) to 4.9 (step 30)"),
        ([5.0, 4.0, 4.5, np.inf, np.inf], "from 4 (step 10), and is not finite from step 30 on"),
        ([5.0, 4.0, 3.9, 3.8], ""),
        ([5.0, 4.0, np.inf, np.inf, 4.5, 4.9], "from 4 (step 10), and is not finite at step 20"),
        ([np.nan, 5.0, np.nan, 4.0, 4.9, np.nan, 4.8], "from 4 (step 30) to 4.9 (step 40), and to 4.8 at the end"),
        ([np.inf, np.inf], "not finite from step 0 on"),
    ],
)
def test_a_rise_that_passed_is_told_as_one(loss, told):
    assert loss_path([10 * i for i in range(len(loss))], loss) == told
