"""The sizes of questions that a model holds: the usual ones that do not fit are left out, others are refused."""

import pytest

from sharpmax.hf.verbs.calibrate import calibrate
from sharpmax.hf.verbs.diagnose import diagnose
from sharpmax.hf.verbs.evaluate import evaluate
from sharpmax.hf.verbs.sizes import question_tokens, sizes_held, usual_sizes
from tests.hf.tiny import tiny


def test_what_fits_is_kept_and_less_than_any_is_looked_for():
    loaded = tiny("llama", max_position_embeddings=400)  # one token a character
    line = question_tokens(loaded, "lookup", 2) - question_tokens(loaded, "lookup", 1)
    assert 20 < line < 50
    assert sizes_held(loaded, ["lookup"], [4, 8, 16, 32]) == [4, 8]
    assert sizes_held(loaded, ["lookup"], [64, 128]) == [8]
    assert usual_sizes(loaded, ["lookup"], (4, 8), "--sizes") == (4, 8)
    with pytest.raises(ValueError, match="tiny-llama holds 40 tokens, and a question of lookup with one entry has"):
        usual_sizes(tiny("llama", max_position_embeddings=40), ["lookup"], (4,), "--sizes")


def test_diagnose_leaves_out_what_does_not_fit_unless_it_was_asked_for(tmp_path):
    loaded = tiny("llama", max_position_embeddings=400)
    found = diagnose(loaded, task="lookup", out=tmp_path, quiet=True)
    assert list(found["right"]) == ["4", "8"]
    assert found.next_step().startswith("sharpmax diagnose tiny-llama --task lookup --lengths 4 8 --prompts 32  # ")
    with pytest.raises(ValueError, match=r"with 64 items has \d+ tokens; tiny-llama holds 400: give --lengths 4$"):
        diagnose(loaded, task="lookup", lengths=[4, 64], out=tmp_path / "asked", quiet=True)
    assert not (tmp_path / "asked").exists()


def test_what_is_suggested_starts(tmp_path):
    """A model of 40 tokens holds no question: calibrate is not suggested."""
    loaded = tiny("llama", max_position_embeddings=40)
    found = diagnose(loaded, lengths=[16, 32], out=tmp_path, quiet=True)
    assert found.next_step().startswith("sharpmax certify tiny-llama  # ")


def test_the_usual_exam_of_a_short_model_fits_it(card, tmp_path, monkeypatch):
    """What `calibrate --quick` and `evaluate --quick` ask by themselves starts on 400 tokens."""
    from sharpmax.hf.verbs import calibrate as fitting
    from sharpmax.hf.verbs import evaluate as judging

    class BegunError(Exception):
        """The work has begun: nothing was refused."""

    def begin(*_, **__):
        raise BegunError

    loaded = tiny("llama", max_position_embeddings=400)
    monkeypatch.setattr(fitting, "learn", begin)
    monkeypatch.setattr(judging, "judge", begin)
    with pytest.raises(BegunError):
        calibrate(loaded, quick=True, out=tmp_path, quiet=True)
    with pytest.raises(BegunError):
        evaluate(loaded, card, quick=True, out=tmp_path, quiet=True)
    with pytest.raises(ValueError, match="lower --sizes"):
        evaluate(loaded, card, sizes=[64], out=tmp_path, quiet=True)
