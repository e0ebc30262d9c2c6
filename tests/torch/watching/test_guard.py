"""Guards: a head that collapses, explodes or grows is named once; heads that were so from the beginning are not."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sharpmax.runs.watched import Reading
from sharpmax.torch import AttentionStoppedError, EntropyCollapseWarning, EntropyExplosionWarning, Guard, watch
from tests.torch.watching.small import batch, model


def reading(shares, maximum=0.0):
    """Return a reading whose heads have these shares of log n."""
    shares = np.asarray(shares, float)
    sums = np.zeros((len(shares), 6))
    sums[:, 0], sums[:, 1], sums[:, 4] = 1, shares * 3.0, 3.0
    return Reading((len(shares),), np.full(len(shares), maximum), sums, np.zeros((len(shares), 256)))


def told(guard, series):
    return [(f.kind, f.step, f.head) for step, shares in enumerate(series) for f in guard.check(step, reading(shares))]


def test_a_head_that_falls_is_told_once_and_again_after_it_recovered():
    series = [[0.5, 0.01], [0.01, 0.01], [0.005, 0.01], [0.5, 0.5], [0.01, 0.01]]
    assert told(Guard(), series) == [("collapse", 1, 0), ("collapse", 4, 0), ("collapse", 4, 1)]


def test_a_head_that_rises_to_uniform_weights_is_told():
    assert told(Guard(), [[1.0], [0.8], [0.999]]) == [("explosion", 2, 0)]


def test_patience_waits_for_readings_in_a_row():
    series = [[0.5], [0.01], [0.5], [0.01], [0.01]]
    assert told(Guard(patience=2), series) == [("collapse", 4, 0)]


def test_what_was_not_measured_is_no_fault():
    assert told(Guard(), [[0.5], [np.nan], [0.5]]) == []


def test_growth_is_of_the_largest_logit():
    guard = Guard(maximum=100)
    assert guard.check(3, reading([0.5], maximum=99.0)) == []
    (found,) = guard.check(4, reading([0.5], maximum=101.0))
    assert str(found) == "step 4: layer 0, head 0: its largest logit is 101, above 100"


def test_a_logit_that_overflows_is_beyond_any_maximum():
    """Such rows are in no maximum, which stays at -inf."""
    net = model()
    with torch.no_grad():
        net[1].q_proj.weight.fill_(1e30)
    watched = watch(net, guard=Guard(maximum=100, action="stop"))
    net(1e30 * batch())
    with pytest.raises(AttentionStoppedError, match=r"step 0: layer \d, head \d: \d+ of its rows hold a NaN"):
        watched.step()
    watched.close()
    poisoned = reading([0.5])
    assert [str(found) for found in Guard(maximum=100).check(0, poisoned)] == []
    poisoned.sums[:, 5] = 7
    assert Guard().check(0, poisoned) == []
    assert [found.to_json()["value"] for found in Guard(maximum=100).check(0, poisoned)] == [7.0]


def test_the_message_names_step_head_and_share():
    guard = Guard()
    guard.check(0, reading([0.5]))
    (found,) = guard.check(7, reading([0.012]))
    assert str(found) == "step 7: layer 0, head 0: its entropy collapsed to 1.20% of log n, below 2.00%"
    assert found.category is EntropyCollapseWarning
    guard.check(8, reading([0.5]))
    assert guard.check(9, reading([0.9999]))[0].category is EntropyExplosionWarning


def test_a_guard_can_stop_the_run():
    net = model()
    watched = watch(net, guard=Guard(maximum=1e-6, action="stop"))
    net(batch())
    with pytest.raises(AttentionStoppedError, match=r"step 0: layer 1, head 3: its largest logit"):
        watched.step()
    watched.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"action": "shout"}, "'warn' or 'stop'"),
        ({"patience": 0}, "patience"),
        ({"patience": 1.5}, "whole number"),
        ({"patience": True}, "whole number"),
        ({"collapse": 2.0}, "between 0 and 1"),
        ({"explosion": "x"}, "explosion to be a share"),
        ({"armed_above": 5.0}, "armed_above to be a share"),
        ({"armed_below": None}, "armed_below to be a share"),
        ({"maximum": float("nan")}, "finite number"),
        ({"maximum": "x"}, "finite number"),
        ({"collapse": 0.1}, "expected armed_"),
        ({"explosion": 0.9}, "expected armed_"),
        ({"collapse": 0.5, "armed_above": 0.2}, "expected armed_"),
    ],
)
def test_settings_that_mean_nothing_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Guard(**options)


def test_one_guard_serves_many_runs():
    guard = Guard(maximum=1e-6, action="stop")
    for heads in (4, 4, 2):
        net = torch.nn.MultiheadAttention(32, heads, batch_first=True)
        with watch(net, guard=guard) as watched:
            net(batch(), batch(), batch())
            with pytest.raises(AttentionStoppedError, match="step 0: layer 0, head"):
                watched.step()


def test_a_layer_that_runs_later_keeps_what_is_known_of_the_others():
    def of(heads, shares):
        return replace(reading(shares), heads=heads)

    guard = Guard()
    assert guard.check(0, of((0, 1), [0.5])) == []
    assert guard.check(1, of((1, 1), [0.5, 0.5])) == []
    assert [(f.layer, f.head) for f in guard.check(2, of((1, 1), [0.5, 0.01]))] == [(1, 0)]
