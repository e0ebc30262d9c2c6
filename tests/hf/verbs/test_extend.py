"""`calibrate --extend` and `evaluate` of its card: judged at the longer length, and the model as it was afterwards."""

import pytest
import torch

import sharpmax
from sharpmax.core.cards import Card, load_card
from sharpmax.core.extension import SelfExtend, Yarn
from sharpmax.hf.calibration.choose import Choice
from sharpmax.hf.finetune.trained_policy import policy_named
from sharpmax.hf.verbs import calibrate
from sharpmax.hf.verbs.certify import certify
from sharpmax.hf.verbs.evaluate import evaluate
from tests.hf.tiny import tiny

TRAINED = 128
SMALL = {"fit_sizes": (1, 1), "sizes": (1,), "prompts": 4, "steps": 1, "text_before": 40, "questions_a_step": 1}


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    words = ["stone", "river", "amber", "old", "quiet", "lamp"]
    file.write_text("\n\n".join(" ".join(words[(i * j) % 6] for j in range(40)) for i in range(60)))
    return file


def model():
    return tiny("llama", max_position_embeddings=TRAINED)


@pytest.mark.parametrize("scaling", ["yarn", "self-extend"])
def test_the_whole_procedure_at_the_longer_length_leaves_the_model_bit_equal(scaling, text, tmp_path, monkeypatch):
    loaded, ids = model(), torch.arange(5, 45)[None]
    before = loaded.model(ids).logits
    policy = sharpmax.PerLayer((sharpmax.Constant(1.0001),) * 2)
    monkeypatch.setattr(calibrate, "choose", lambda *_, **__: Choice("it", policy, {}))
    told = calibrate.calibrate(loaded, extend=2, scaling=scaling, text=text, out=tmp_path, most_rise=0.5, **SMALL)
    assert torch.equal(loaded.model(ids).logits, before)
    assert list(told["judgement"]["text"]) == ["256"]
    assert list(told["whole"]["text"]) == ["256"]
    assert told["extension"]["type"] == {"yarn": "Yarn", "self-extend": "SelfExtend"}[scaling]
    assert "beside the model as it is, the two together" in told.summary()
    if told["card"] is not None:
        assert load_card(told["card"]).extension.context == 2 * TRAINED


def test_evaluate_judges_a_card_beyond_the_trained_context_and_only_one_that_extends(text, tmp_path):
    card, plain = tmp_path / "card.json", tmp_path / "plain.json"
    Card(sharpmax.Constant(1.2), "tiny-llama", extension=SelfExtend(2.0, TRAINED)).save(card)
    Card(sharpmax.Constant(1.2), "tiny-llama").save(plain)
    exam = {"sizes": (1,), "prompts": 2, "windows": (64, 256), "text": text, "out": tmp_path}
    loaded = model()
    told = evaluate(loaded, card, **exam)
    assert list(told["judgement"]["text"]) == ["64", "256"]
    with sharpmax.hf.sharpen(loaded.model, card):
        ids = torch.arange(5, 60)[None]
        inside = loaded.model(ids).logits
    assert not torch.equal(inside, loaded.model(ids).logits)
    with pytest.raises(ValueError, match="expected windows of at most 128 tokens"):
        evaluate(loaded, plain, **exam)


def test_the_judgement_is_beside_the_extension_alone_and_the_whole_beside_the_model(text, tmp_path):
    """A card that does nothing is no different from its extension, and differs from the model."""
    card = tmp_path / "card.json"
    Card(sharpmax.Constant(1.0), "tiny-llama", extension=Yarn(2.0, TRAINED)).save(card)
    told = evaluate(model(), card, sizes=(1,), prompts=2, windows=(256,), text=text, out=tmp_path)
    assert told["judgement"]["text"]["256"]["difference"] == 0
    assert told["whole"]["text"]["256"]["difference"] != 0


def test_what_cannot_be_extended_is_refused_before_any_work(text, tmp_path, fails_at_work):
    for family, said in (("gpt2", "GPT2LMHeadModel has no rotary positions"), ("gemma3", "several kinds")):
        with pytest.raises(NotImplementedError, match=said):
            calibrate.calibrate(tiny(family), extend=2, text=text, out=tmp_path, **SMALL)
    with pytest.raises(ValueError, match="expected extend of at least 1"):
        calibrate.calibrate(model(), extend=0.5, text=text, out=tmp_path, **SMALL)
    with pytest.raises(ValueError, match="did you mean 'yarn'"):
        calibrate.calibrate(model(), extend=2, scaling="yarm", text=text, out=tmp_path, **SMALL)


def test_a_scaling_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="say how far with extend, or leave out scaling 'ntk'"):
        calibrate.calibrate(model(), scaling="ntk", out=tmp_path)


def test_what_would_leave_the_extension_of_a_card_out_refuses_it(tmp_path):
    card = tmp_path / "card.json"
    Card(sharpmax.Constant(1.5), extension=Yarn(4.0, TRAINED)).save(card)
    with pytest.raises(ValueError, match="extends the context by Yarn"):
        certify(model(), card=card, out=tmp_path)
    with pytest.raises(ValueError, match="extends the context by Yarn"):
        policy_named(card, model().model)
