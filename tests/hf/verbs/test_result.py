"""The model that a verb is given: one whose figures would be of another model is refused."""

import pytest

import sharpmax
from sharpmax.hf import calibrate, certify, diagnose, doctor, evaluate, sharpen
from sharpmax.hf.calibration.answers import written
from sharpmax.hf.models.gemma import gemma
from sharpmax.hf.verbs.result import loaded_model
from tests.hf.tiny import tiny


@pytest.mark.parametrize("verb", [diagnose, certify])
def test_what_is_measured_is_the_model_as_it_is(verb, tmp_path):
    loaded = tiny("llama")
    said = "is extended by Yarn.*, and would be taken for the model as it is"
    with sharpen(loaded.model, extension=sharpmax.Yarn(4.0, 256)), pytest.raises(ValueError, match=said):
        verb(loaded, out=tmp_path, quiet=True)
    loaded.model.train()
    with pytest.raises(ValueError, match="is in training mode, whose dropout would be measured"):
        verb(loaded, out=tmp_path, quiet=True)
    assert not any(tmp_path.iterdir())


def test_a_tokenizer_may_learn_words_between_two_verbs():
    loaded, question = gemma("gemma-tiny"), ("the code of the lamp is", " 42")
    before = len(written(loaded_model(loaded, False, None), [question])[0].ids)
    loaded.tokenizer.add_tokens(["code", "lamp"])
    after = len(written(loaded_model(loaded, False, None), [question])[0].ids)
    assert (before, after) == (26, 20)


@pytest.mark.parametrize("of", ["a path", "a model"])
@pytest.mark.parametrize("verb", [diagnose, certify, evaluate, doctor])
def test_what_is_no_name_and_no_loaded_model_is_refused(verb, of, tmp_path):
    sharpmax.Constant(1.1).save(tmp_path / "card.json")
    model = tmp_path if of == "a path" else tiny("llama").model
    with pytest.raises(TypeError, match="name or the folder of a model as text, or a LoadedModel"):
        verb(model, **{} if verb is diagnose else {"card": tmp_path / "card.json"}, out=tmp_path, quiet=True)


@pytest.mark.parametrize("verb", [certify, evaluate, doctor])
def test_a_policy_in_the_place_of_a_card_is_refused(verb, tmp_path):
    with pytest.raises(TypeError, match=r'a policy becomes one by policy.save\("card.json"\)'):
        verb(tiny("llama"), card=sharpmax.PAPER, out=tmp_path, quiet=True)


@pytest.mark.parametrize(
    ("verb", "options", "said"),
    [
        (diagnose, {"texts": "LICENSE"}, r"expected texts as a list, got 'LICENSE'; one alone is \['LICENSE'\]"),
        (diagnose, {"lengths": 64}, r"expected lengths as a list, got 64; one alone is \[64\]"),
        (diagnose, {"lengths": [64.5]}, r"expected lengths above 0, got \[64.5\]"),
        (diagnose, {"rows": 1.5}, "expected 1 row or more to observe at each length, got 1.5"),
        (diagnose, {"task": "lookup", "asked": 2.0}, "expected asked of at least 1 prompt, got 2.0"),
        (certify, {"length": 64.5}, "expected a length of 2 tokens or more, got 64.5"),
        (certify, {"text": ["LICENSE"]}, r"expected the path of one text, got \['LICENSE'\]"),
        (calibrate, {"fit_tasks": "lookup"}, "expected fit_tasks as a list, got 'lookup'"),
    ],
)
def test_an_option_of_another_kind_is_refused_by_name(verb, options, said, tmp_path):
    with pytest.raises((TypeError, ValueError), match=said):
        verb(tiny("llama"), **options, out=tmp_path, quiet=True)
