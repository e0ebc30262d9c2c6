"""Timing: contestants take turns, and the first call of each is not counted."""

import pytest

from sharpmax.bench.timing import interleaved_medians


def test_contestants_take_turns_after_a_warm_up():
    calls = []
    medians = interleaved_medians({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=2)
    assert "".join(calls) == "ab" + "abab"
    assert set(medians) == {"a", "b"}
    assert all(seconds >= 0 for seconds in medians.values())


def test_at_least_one_repeat():
    with pytest.raises(ValueError, match="at least 1"):
        interleaved_medians({}, repeats=0)
