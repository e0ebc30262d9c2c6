"""`sharpmax evaluate`: the exit code tells the verdict, and a card and a text count by what they say."""

import pytest
import torch

import sharpmax
from sharpmax import cli
from sharpmax.hf.calibration.choose import Choice
from sharpmax.hf.calibration.exams import _texts
from sharpmax.hf.sharpen.switch import sharpen
from sharpmax.hf.verbs import calibrate, judgement, next_command, result
from sharpmax.hf.verbs.doctor import doctor
from sharpmax.hf.verbs.evaluate import evaluate
from tests.hf.tiny import tiny
from tests.hf.verbs.sheets import right_if

SMALL = {"sizes": (2,), "prompts": 2, "windows": (32,), "text_tokens": 64}


def test_a_card_is_judged_again_and_the_exit_code_tells(big, card, tmp_path, monkeypatch):
    monkeypatch.setattr(result, "load", lambda name, **_: big)
    common = ["--sizes", "2", "--prompts", "24", "--windows", "32", "--text-tokens", "512", "--out", str(tmp_path)]
    judge_card = ["evaluate", "tiny", "--card", str(card), *common]
    assert cli.main(judge_card) == 3  # random weights have nothing to gain
    monkeypatch.setattr(judgement, "sit", lambda _, __, policy=None, **___: right_if(policy is not None))
    assert cli.main(judge_card) == 0
    undecided = {False: (1.0, 1.0), True: (0.99, 1.01)}
    monkeypatch.setattr(
        judgement, "sit", lambda _, __, policy=None, **___: right_if(policy is not None, undecided[policy is not None])
    )
    assert cli.main(judge_card) == 4
    monkeypatch.undo()
    monkeypatch.setattr(result, "load", lambda name, **_: big)
    monkeypatch.setattr(calibrate, "choose", lambda *_, **__: Choice(None, None, {}))
    fit = ["--fit-sizes", "1", "2", "--steps", "1", "--text-before", "300"]
    assert cli.main(["calibrate", "tiny", *fit, *common]) == 3
    assert not list((tmp_path / "calibrate").rglob("card.json"))


def test_another_exam_of_the_same_card_goes_into_a_folder_of_its_own(big, card, tmp_path):
    for options in ({}, {"sizes": (3,)}, {"prompts": 3}, {}):
        evaluate(big, card, out=tmp_path, **{**SMALL, **options})
    found = sorted((tmp_path / "evaluate").glob("tiny-llama-card-seed0-*/metrics.json"))
    assert len(found) == 3


def test_a_card_and_a_text_count_by_what_they_say(big, card, tmp_path):
    """An edited one makes another run; the same one elsewhere, or with other notes, does not."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"Line {n}." for n in range(60)))

    def runs(card):
        evaluate(big, card, text=text, out=tmp_path, **SMALL)
        return len(list((tmp_path / "evaluate").iterdir()))

    elsewhere = tmp_path / "elsewhere" / "card.json"
    elsewhere.parent.mkdir()
    assert runs(card) == 1
    sharpmax.Constant(1.1).save(elsewhere, notes="the same")
    assert runs(elsewhere) == 1
    sharpmax.Constant(1.2).save(card)
    assert runs(card) == 2
    read = _texts(big, "report", text, 64, 32)["text"]
    text.write_text("\n\n".join(f"Other {n}." for n in range(60)))
    assert runs(card) == 3
    assert not _texts(big, "report", text, 64, 32)["text"].equal(read)


def test_a_model_that_was_trained_on_since_is_another_run(card, tmp_path):
    """Its name is the same: what the earlier weights answered was read back as its own."""
    big = tiny("llama", max_position_embeddings=2048)
    before = evaluate(big, card, out=tmp_path, **SMALL)
    with torch.no_grad():
        big.model.get_input_embeddings().weight.mul_(1.5)
    after = evaluate(big, card, out=tmp_path, **SMALL)
    assert after.folder != before.folder
    assert after["judgement"] != before["judgement"]


def test_a_place_that_cannot_be_written_is_said_before_the_card_is_judged(big, card, tmp_path, fails_at_work):
    (tmp_path / "runs").write_text("a file, not a folder")
    with pytest.raises(OSError, match="runs"):
        evaluate(big, card, out=tmp_path / "runs", **SMALL)


def test_a_card_of_another_model_is_refused_before_any_work_and_bars_nothing(big, card, tmp_path, fails_at_work):
    sharpmax.PerLayer((sharpmax.Constant(1.1),) * 7).save(card)
    with pytest.raises(ValueError, match="7"):
        evaluate(big, card, out=tmp_path, **SMALL)
    assert list(tmp_path.iterdir()) == [card]


def test_what_is_typed_beside_quick_is_kept_also_where_it_is_the_usual(card, monkeypatch):
    """40 questions are what a run without quick asks: they were taken for none."""
    asked = {}

    def noted(model, card, **options):
        asked.update(options)
        raise ValueError("enough")

    monkeypatch.setattr("sharpmax.hf.evaluate", noted)
    command = ["evaluate", "smollm2", "--card", str(card), "--quick", "--prompts", "40"]
    assert cli.main(command) == 2
    exam = {name: asked[name] for name in ("sizes", "prompts", "text_tokens") if name in asked}
    assert exam == {"prompts": 40}
    assert judgement.quick_exam(exam) == {"sizes": (16, 32), "text_tokens": 4096, "windows": (256,)}
    assert next_command.given(exam, quick=True) == {"prompts": 40}
    assert next_command.given(exam) == {}


def test_what_was_typed_and_does_not_fit_is_refused_also_where_it_is_the_usual(card, tmp_path):
    short = tiny("llama", max_position_embeddings=1024)
    with pytest.raises(ValueError, match="a question of lookup, size 32, has"):
        evaluate(short, card, out=tmp_path, quiet=True, **{**SMALL, "sizes": [16, 32, 64]})


def test_a_run_is_the_same_whether_what_is_usual_was_typed_or_not():
    assert judgement.exam_config({}) == judgement.exam_config({"prompts": 40, "tasks": ("lookup",), "text": None})


@pytest.mark.parametrize("prompts", [1.5, True, "4"])
def test_a_number_that_is_not_whole_is_refused(prompts):
    with pytest.raises(ValueError, match="expected prompts of at least 1, got"):
        judgement.check_exam({}, 0, {"prompts": prompts})


@pytest.mark.parametrize("sizes", [2, 2.5, "16", [16, 0], []])
def test_sizes_that_are_no_list_of_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match="expected sizes"):
        judgement.check_exam({}, 0, {"sizes": sizes})


@pytest.mark.parametrize("on", [{"policy": sharpmax.Constant(3.0)}, {"extension": sharpmax.Yarn(2.0, 64)}])
def test_a_sharpened_model_is_not_taken_for_the_plain_one(on, card, tmp_path, fails_at_work):
    """Its figures stood as those of the plain model, in the folder of the plain model's run."""
    small = tiny("llama", max_position_embeddings=64)
    said = "is (sharpened|extended) by .*, and would be taken for the (plain )?model"
    with sharpen(small.model, **on), pytest.raises(ValueError, match=said):
        evaluate(small, card, out=tmp_path)
    with sharpen(small.model, **on), pytest.raises(ValueError, match=said):
        calibrate.calibrate(small, out=tmp_path, quick=True)
    with sharpen(small.model, **on), pytest.raises(ValueError, match=said):
        doctor(small, card=card, out=tmp_path)
