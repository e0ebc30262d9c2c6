"""How long reading takes: by turns, with a spread, and nothing on a busy machine."""

import pytest

import sharpmax
from sharpmax.hf.calibration import reading_time as timing
from sharpmax.hf.calibration.judge import Exam
from sharpmax.hf.calibration.reading_time import TURNS, ReadingTime, reading_time
from tests.hf.calibration.questions import QUESTIONS, TEXT, exam
from tests.hf.tiny import tiny


@pytest.fixture
def clock(loaded, monkeypatch):
    """Return what times the reading on a clock on which plain takes 2 s and sharpened 3 s, but for some turns."""

    def timed(asked, slow_turns):
        now, passes = [0.0], []

        def read(*_, **__):
            sharpened = loaded.model.config._attn_implementation.startswith("sharpmax")
            slow = (len(passes) // 2 in slow_turns) and not sharpened
            passes.append(sharpened)
            now[0] += 100.0 if slow else 3.0 if sharpened else 2.0
            return []

        monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
        for name in ("text_losses", "answer"):
            monkeypatch.setattr(timing, name, read)
        return reading_time(loaded, asked, sharpmax.Constant(1.1)), passes

    return timed


@pytest.mark.parametrize("texts", [True, False])
def test_time_is_measured_by_turns_after_a_warm_up(clock, texts):
    found, passes = clock(exam() if texts else Exam({"letters": {1: QUESTIONS}}, {}, ()), slow_turns=(0, 4))
    assert (found.median, found.low, found.high) == (1.5, 1.5, 1.5)
    assert "reading takes 1.50x as long" in str(found)
    assert passes[:4] == [False, True, True, False]  # neither is always first
    assert len(passes) == 2 * (1 + TURNS)


def test_nothing_is_told_on_a_busy_machine(clock):
    found, _ = clock(exam(), slow_turns=range(0, 1 + TURNS, 2))
    assert found.busy
    assert "not told: this machine is busy" in str(found)
    assert ReadingTime(**found.to_json()) == found


def test_time_is_measured_on_no_more_text_than_the_model_holds():
    """A model with 64 learned positions has none for the next token: it is not asked for 512."""
    small = tiny("gpt2", max_position_embeddings=64)
    asked = Exam({}, {"text": small.tokens(TEXT * 8)}, (32,))
    assert asked.texts["text"].shape[1] > small.context
    assert reading_time(small, asked, sharpmax.Constant(1.1)).median > 0
