"""The study runs from end to end, in miniature, and continues where it was stopped."""

import json

import pytest

from sharpmax.experiments import calibration_study
from tests.hf.tiny import tiny


@pytest.fixture
def small(monkeypatch):
    model = tiny("llama", max_position_embeddings=2048)
    monkeypatch.setattr(calibration_study, "load", lambda name, device: model)
    changes = {"SEEDS": range(2), "PENALTIES": (1.0,), "SIZES": (2,), "WINDOWS": (32,), "TRANSFER": ("copy",)}
    changes |= {"TRANSFER_SIZES": (2,), "GLOBAL_BETAS": (1.1,), "MIXTURE": ("lookup", "copy")}
    for name, value in changes.items():
        monkeypatch.setattr(calibration_study, name, value)
    return {"model": "tiny", "device": "cpu", "prompts": 2, "steps": 1, "text_tokens": 96, "batch": 2}


def test_every_step_is_computed_once(small, tmp_path, monkeypatch):
    part = calibration_study.run(tmp_path, **small, only=("seed0",))
    assert set(part) == {"seed0"}
    monkeypatch.setattr("sharpmax.experiments.calibration_study.SEEDS", range(1))
    whole = calibration_study.run(tmp_path, **small)
    steps = {"seed0", "penalty1", "b-alone", "mixture", "transfer", "lora", "paper", "beta1.1"}
    assert set(whole) == steps
    assert whole["seed0"] == part["seed0"]
    assert set(whole["transfer"]) == {"seed0", "mixture"}
    assert (tmp_path / "calibration-study" / "tiny" / "figures" / "trade-off.svg").exists()
    stored = json.loads((tmp_path / "calibration-study" / "tiny" / "metrics.json").read_text())
    assert stored["lora"]["tasks"]["lookup"]["2"]["accuracy"]["items"] == 2


def test_an_unknown_step_is_refused(small, tmp_path):
    with pytest.raises(ValueError, match="seed7"):
        calibration_study.run(tmp_path, **small, only=("seed7",))
    with pytest.raises(ValueError, match="fits that were not made"):
        calibration_study.run(tmp_path, **small, only=("transfer",))
