"""`sharpmax evaluate`: the exit code tells the verdict, and a card and a text count by what they say."""

import pytest

import sharpmax
from sharpmax import cli
from sharpmax.hf.calibration.choose import Choice
from sharpmax.hf.calibration.exams import _texts
from sharpmax.hf.verbs import calibrate, judgement, result
from sharpmax.hf.verbs.evaluate import evaluate
from tests.hf.tiny import tiny
from tests.hf.verbs.sheets import right_if


def test_a_card_is_judged_again_and_the_exit_code_tells(tmp_path, monkeypatch):
    big = tiny("llama", max_position_embeddings=2048)
    monkeypatch.setattr(result, "load", lambda name, **_: big)
    sharpmax.Constant(1.1).save(tmp_path / "card.json")
    common = ["--sizes", "2", "--prompts", "24", "--windows", "32", "--text-tokens", "512", "--out", str(tmp_path)]
    judge_card = ["evaluate", "tiny", "--card", str(tmp_path / "card.json"), *common]
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


def test_another_exam_of_the_same_card_goes_into_a_folder_of_its_own(tmp_path):
    big = tiny("llama", max_position_embeddings=2048)
    sharpmax.Constant(1.1).save(tmp_path / "card.json")
    usual = {"sizes": (2,), "prompts": 2, "windows": (32,), "text_tokens": 64, "out": tmp_path}
    for options in ({}, {"sizes": (3,)}, {"prompts": 3}, {}):
        evaluate(big, tmp_path / "card.json", **{**usual, **options})
    found = sorted((tmp_path / "evaluate").glob("tiny-llama-card-seed0-*/metrics.json"))
    assert len(found) == 3


def test_a_card_and_a_text_count_by_what_they_say(tmp_path):
    """An edited one makes another run; the same one elsewhere, or with other notes, does not."""
    big = tiny("llama", max_position_embeddings=2048)
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"Line {n}." for n in range(60)))
    usual = {"sizes": (2,), "prompts": 2, "windows": (32,), "text_tokens": 64, "out": tmp_path, "text": text}

    def runs(card):
        evaluate(big, card, **usual)
        return len(list((tmp_path / "evaluate").iterdir()))

    card, elsewhere = tmp_path / "card.json", tmp_path / "elsewhere" / "card.json"
    elsewhere.parent.mkdir()
    sharpmax.Constant(1.1).save(card)
    assert runs(card) == 1
    sharpmax.Constant(1.1).save(elsewhere, notes="the same")
    assert runs(elsewhere) == 1
    sharpmax.Constant(1.2).save(card)
    assert runs(card) == 2
    read = _texts(big, "report", text, 64, 32)["text"]
    text.write_text("\n\n".join(f"Other {n}." for n in range(60)))
    assert runs(card) == 3
    assert not _texts(big, "report", text, 64, 32)["text"].equal(read)


def test_a_place_that_cannot_be_written_is_said_before_the_card_is_judged(tmp_path, fails_at_work):
    sharpmax.Constant(1.1).save(tmp_path / "card.json")
    (tmp_path / "runs").write_text("a file, not a folder")
    big = tiny("llama", max_position_embeddings=2048)
    options = {"sizes": (2,), "prompts": 2, "windows": (32,), "text_tokens": 512}
    with pytest.raises(OSError, match="runs"):
        evaluate(big, tmp_path / "card.json", out=tmp_path / "runs", **options)


def test_a_card_of_another_model_is_refused_before_any_work_and_bars_nothing(tmp_path, fails_at_work):
    sharpmax.PerLayer((sharpmax.Constant(1.1),) * 7).save(tmp_path / "card.json")
    with pytest.raises(ValueError, match="7"):
        evaluate(
            tiny("llama", max_position_embeddings=2048), tmp_path / "card.json", out=tmp_path, sizes=(2,), windows=(32,)
        )
    assert [file.name for file in tmp_path.iterdir()] == ["card.json"]
