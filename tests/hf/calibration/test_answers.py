"""Answers: exact where greedy decoding gives them, whatever stands beside them in a batch or a text."""

import numpy as np
import pytest

from sharpmax.hf.calibration.answers import answer, answer_losses
from tests.hf.calibration.questions import QUESTIONS


def test_an_answer_is_exact_if_greedy_decoding_gives_it(loaded):
    letters = {5 + ord(c) % 59: c for c in map(chr, range(97, 156))}
    options = {"max_new_tokens": 2, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    for text in ("abcabcab", "hello", "there", "length", "sharp"):
        prompt = loaded.tokens(text)
        first, second = loaded.model.generate(prompt, suppress_tokens=None, **options)[0, prompt.shape[1] :].tolist()
        if first in letters and second in letters:  # the random model may say a marker that no text writes
            break
    else:
        pytest.fail("no text whose continuation can be written")
    right, wrong = letters[first] + letters[second], letters[first] + letters[5 + (second - 4) % 59]
    assert [a.exact for a in answer(loaded, [(text, right), (text, wrong)])] == [True, False]


def test_batches_change_nothing(loaded):
    alone, together = answer(loaded, QUESTIONS), answer(loaded, QUESTIONS, batch=3)
    for one, other in zip(alone, together, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.exact == other.exact


def test_several_answers_in_one_text_are_asked_at_once(loaded):
    """What is given and asked for by turns: each answer has the loss it has when asked alone."""
    parts = ("The code of the bell is", " 12", ". The code of the lamp is", " 34")
    together = answer(loaded, [parts])
    alone = answer(loaded, [parts[:2], ("".join(parts[:3]), parts[3])])
    assert [a.exact for a in together] == [a.exact for a in alone]
    assert [a.loss for a in together] == pytest.approx([a.loss for a in alone], rel=1e-4)
    mean = float(answer_losses(loaded, [parts]).detach())
    assert mean == pytest.approx(np.mean([a.loss for a in alone]), rel=1e-4)
    with pytest.raises(ValueError, match="begin it with a space"):
        answer(loaded, [("only given",)])
    with pytest.raises(ValueError, match="no tokens to write ''"):
        answer(loaded, [("given", "")])
