"""The whole way in one call: the symptom, the heads, a card or "do not", and one page."""

import pytest
from transformers import GraniteConfig, GraniteForCausalLM

import sharpmax
from sharpmax.hf import LoadedModel
from sharpmax.hf.calibration.judge import Verdict
from sharpmax.hf.verbs import doctor as whole
from sharpmax.hf.verbs.calibrate import CalibrationResult
from sharpmax.hf.verbs.doctor import doctor
from tests.hf.tiny import Characters, tiny


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(whole, "SIZES", (1, 2))
    monkeypatch.setattr(
        whole, "EXAM", {"sizes": (2,), "prompts": 24, "windows": (32,), "text_tokens": 128, "together": 4096}
    )


def test_a_given_card_is_judged_and_one_page_says_what_to_do(small, big, card, tmp_path):
    found = doctor(big, card=card, out=tmp_path, quiet=True)
    assert found["verdict"] == Verdict.NO_GAIN  # random weights have nothing to gain
    assert found["advice"] == "do not sharpen this model"
    page = found.save_page().read_text()
    for heading in ("1. The symptom", "2. The heads", "3. What is seen and proved", "4. A card, or not", "5. The cost"):
        assert heading in page
    assert "Right answers to lookup by items: 0% at 1, 0% at 2 (8 questions each)." in page
    assert "Right answers: 0% plain, 0% with the card (24 questions)." in page
    assert found.summary().count("\n") == 4
    assert found.closing().splitlines()[1].endswith("or leave the model as it is")


def test_a_model_that_answers_nothing_is_told_so(small, tmp_path):
    found = doctor(tiny("bert"), out=tmp_path, quiet=True)
    assert found.judged is None
    assert "no card" in found["advice"]
    assert found.save_page().exists()


def test_where_no_candidate_is_better_the_page_has_the_diagnosis_s_figure(small, big, tmp_path, monkeypatch):
    none = {"judgement": None, "verdict": Verdict.NO_GAIN, "card": None, "quick": True}
    fitted = CalibrationResult(none, tmp_path / "calibrate", "tiny-llama")
    monkeypatch.setattr(whole, "calibrate", lambda *_, **__: fitted)
    found = doctor(big, out=tmp_path, quiet=True)
    assert "The mean entropy of all heads goes from" in found.save_page().read_text()
    assert found.plot().get_ylabel() == "entropy (nats)"


def works(*_, **__):
    raise AssertionError("no work was to begin")


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (None, "there is no card"),
        (sharpmax.PerLayer((sharpmax.Constant(1.1),) * 3), "the policy holds 3 layers"),
        (sharpmax.Card(sharpmax.Constant(1.1), extension=sharpmax.Yarn(2.0, 64)), "trained"),
    ],
)
def test_a_card_that_cannot_be_judged_is_refused_before_any_work(small, big, tmp_path, monkeypatch, policy, said):
    monkeypatch.setattr(whole, "diagnose", works)
    if policy is not None:
        policy.save(tmp_path / "card.json")
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        doctor(big, card=tmp_path / "card.json", out=tmp_path, quiet=True)


def test_another_card_is_another_run(small, big, tmp_path):
    folders = set()
    for beta in (1.1, 1.2):
        sharpmax.Constant(beta).save(tmp_path / f"{beta}.json")
        folders.add(doctor(big, card=tmp_path / f"{beta}.json", out=tmp_path, quiet=True).folder)
    assert len(folders) == 2


def test_a_family_without_a_proof_is_treated_all_the_same(small, tmp_path):
    sharpmax.Constant(1.1).save(tmp_path / "card.json")
    shape = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    model = GraniteForCausalLM(GraniteConfig(**shape, num_attention_heads=4, num_key_value_heads=2)).eval()
    loaded = LoadedModel("tiny-granite", model, Characters())
    found = doctor(loaded, card=tmp_path / "card.json", out=tmp_path, quiet=True)
    assert found["certification"] is None
    assert "3. No certificate for granite: its norm layers are not known here" in found.summary()
    assert "No certificate for granite" in found.save_page().read_text()
