"""The study runs from end to end, in miniature, and continues where it was stopped."""

import json

import pytest

from sharpmax.core.cards import load_card
from sharpmax.experiments.calibration import study
from sharpmax.experiments.calibration.table import transfer
from sharpmax.hf.calibrate.choose import Choice, choose, kept
from sharpmax.hf.calibrate.splits import proposals_of, text_of
from tests.hf.tiny import tiny


@pytest.fixture
def small(monkeypatch, tmp_path_factory):
    model = tiny("llama", max_position_embeddings=2048)
    monkeypatch.setattr(study, "load", lambda name, device: model)
    asked = (("lookup",), (2,), (32,))
    fits = {"seed0": {"seed": 0}, "seed1": {"seed": 1}, "mixture": {"tasks": ("recall", "copy")}}
    fits |= {"no-text-before": {"before": ""}, "penalty3": {"penalty": 3.0, "allowed": None}}
    changes = {
        "MAIN": asked,
        "RIVAL": (("lookup",), (2, 3), (32,)),
        "TRANSFER": (("copy",), (2,), ()),
        "WINDOWS": (32, 64),
        "FITS": fits,
    }
    changes |= {"CHOSEN": ("seed0", "seed1", "mixture"), "FITTED_SIZES": (2, 4), "MOST_RISE": 10.0}
    changes |= {
        "RULES": {"paper": study.PAPER},
        "TEXT_BEFORE": 300,
        "LORAS": {"lora-0.001": 1e-3, "lora-0.01": 1e-2},
    }
    for name, value in changes.items():
        monkeypatch.setattr(study, name, value)

    def keep_a_half(loaded, fitted, exam, **options):
        """Choose as ever, and then keep half of the heads whatever they scored: random weights gain nothing."""
        name = "50% of heads at strength 1"
        scores = choose(loaded, fitted, exam, **options).scores
        return Choice(name, kept(fitted, 0.5, 1.0), {name: scores["plain"], **scores})

    monkeypatch.setattr(study, "choose", keep_a_half)
    proposals = tmp_path_factory.mktemp("peps")
    for number in (500, 600):
        lines = (f"Proposal {number} says {line}." for line in range(400))
        (proposals / f"pep-0{number}.rst").write_text("\n\n".join(lines))
    return {
        "proposals": proposals,
        "model": "tiny",
        "device": "cpu",
        "prompts": 2,
        "steps": 1,
        "questions": 2,
        "text_tokens": 128,
    }


def test_every_step_is_computed_once(small, tmp_path, monkeypatch, caplog):
    part = study.run(tmp_path, **small, only=("seed0",))
    assert set(part) == {"seed0"}
    with caplog.at_level("INFO", logger="sharpmax"):
        whole = study.run(tmp_path, **small)
    assert any(line.startswith("judge-seed1: ") for line in caplog.messages)
    assert not any(line.startswith("judge-seed0: ") for line in caplog.messages)

    def again(*_, **__):
        pytest.fail("a step on disk was computed again")

    for name in ("sit", "learn_side_by_side", "choose"):
        monkeypatch.setattr(study, name, again)
    assert study.run(tmp_path, **small) == whole
    steps = {"seed0", "seed1", "mixture", "no-text-before", "penalty3", "paper", "lora"}
    (rejected,) = {"lora-0.001", "lora-0.01"} & set(whole)
    assert whole["lora"]["score"]["answer_loss"] <= whole[rejected]["score"]["answer_loss"]
    assert {whole["lora"]["rate"], whole[rejected]["rate"]} == {0.001, 0.01}
    transfers = {f"transfer-{name}" for name in ("seed0", "seed1", "mixture", "lora", rejected)}
    assert set(whole) == steps | {rejected, "seeds", "card"} | transfers
    assert whole["card"] in ("seed0", "seed1")
    assert whole["seed0"] == part["seed0"]
    stored = json.loads((tmp_path / "calibration-study" / "tiny" / "metrics.json").read_text())
    assert stored["lora"]["tasks"]["lookup"]["2"]["accuracy"]["items"] == 2
    for name in transfers:
        assert stored[name]["tasks"]["copy"]["2"]["accuracy"]["items"] == 2
        assert "records" not in stored[name]
    header, _, row = transfer(stored)
    named = ["plain", "mean of 2 seeds (lowest)", f"{whole['card']}, the card", "mixture", "lora"]
    assert header == f"| not fitted on, size | {' | '.join(named)} |"
    assert row.count("|") == header.count("|")
    assert stored["paper"]["unseen"]["32"]["items"] == 4
    assert {"32", "source 32", "docstrings 32", "reference 32"} == set(stored["paper"]["text"])
    assert stored["seeds"]["tasks"]["lookup"]["2"]["accuracy"]["items"] == 4
    card = load_card(tmp_path / "calibration-study" / "tiny" / "card.json")
    assert "50% of heads" in card.notes
    assert card.data.endswith(whole["card"])
    assert card.held_out["tasks"]["lookup"]["2"]["accuracy"]["items"] == 2
    figures = tmp_path / "calibration-study" / "tiny" / "figures"
    assert {file.name for file in figures.glob("*.png")} == {"accuracy.png", "trade-off.png"}


def test_the_card_is_of_a_seed_whose_text_was_judged_allowed(small, tmp_path):
    study.run(tmp_path, **small)
    folder = tmp_path / "calibration-study" / "tiny"
    for refused, left in (("seed0", "seed1"), ("seed1", None)):
        judged = folder / "steps" / f"judge-{refused}.json"
        step = json.loads(judged.read_text())
        step["value"]["text"]["source 32"]["perplexity_rise"] = 10.1
        judged.write_text(json.dumps(step))
        (folder / "card.json").unlink()
        assert study.run(tmp_path, **small)["card"] == left
        assert (folder / "card.json").exists() == (left is not None)
        if left:
            assert load_card(folder / "card.json").data.endswith(left)


def test_what_is_absent_is_named_and_not_made_up(small, tmp_path, monkeypatch):
    study.run(tmp_path, **small, only=("seed0", "paper"))
    with pytest.raises(ValueError, match="no judgement of seed1 to gather"):
        study.run(tmp_path, **small, gather=True)
    study.run(tmp_path, **small, only=("seed1",))
    monkeypatch.setattr(study, "sit", lambda *_, **__: pytest.fail("something was judged"))
    found = study.run(tmp_path, **small, gather=True)
    assert set(found) == {"seed0", "seed1", "paper", "seeds", "card", "absent"}
    transfers = {"transfer-seed0", "transfer-seed1", "transfer-mixture"}
    assert set(found["absent"]) == {"mixture", "no-text-before", "penalty3", "lora-0.001", "lora-0.01"} | transfers
    assert transfer(found) == []
    folder = tmp_path / "calibration-study" / "tiny"
    assert {file.name for file in (folder / "figures").glob("*.png")} == {"accuracy.png"}
    assert load_card(folder / "card.json").held_out["tasks"]


def test_an_unknown_step_is_refused(small, tmp_path):
    with pytest.raises(ValueError, match="seed7"):
        study.run(tmp_path, **small, only=("seed7",))


def test_the_report_reads_what_no_report_has_read_and_the_choice_something_else(small, monkeypatch):
    model, read = study.load("tiny", "cpu"), {}
    one = study._Study(model, None, {**small, "text_tokens": 10**9}, 1, small["proposals"])
    monkeypatch.setattr(study, "SELECTION", 10**9)
    for split in ("choose", "report"):
        read[split] = {kind: ids[0].tolist() for kind, ids in one._texts(split).items()}
    assert read["report"].keys() - read["choose"].keys() == {"unseen", "reference"}
    for kind in ("source", "docstrings"):
        whole = model.tokens(study.KINDS[kind]("report"))[0].tolist()
        assert read["report"][kind] == whole[65536:]
        assert len(read["report"][kind]) > 8 * 4096
    proposals = [model.tokens(proposals_of(split, small["proposals"]))[0].tolist() for split in ("choose", "report")]
    reference = model.tokens(text_of("choose"))[0].tolist()
    assert read["choose"]["text"] == reference + proposals[0]
    assert read["report"]["text"] == proposals[1]


def test_a_folder_without_proposals_is_refused(small, tmp_path):
    with pytest.raises(FileNotFoundError, match="no pep-05"):
        study.run(tmp_path, **{**small, "proposals": tmp_path})
