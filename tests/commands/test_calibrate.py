"""`calibrate` and `evaluate` as they are called: what they write, what they refuse and when, and their exit codes."""

import math

import pytest
import torch
from scipy.stats import ttest_rel

import sharpmax
from sharpmax.commands import calibrate
from sharpmax.core.cards import load_card
from sharpmax.hf.calibrate.answers import Answered
from sharpmax.hf.calibrate.judge import Sheet
from sharpmax.statistics import paired, paired_accuracy
from tests.hf.tiny import tiny


def test_text_before_a_question_adds_length_and_no_entries():
    before = "Nothing to find here. " * 200
    plain, behind = (
        calibrate.fitting_questions(("lookup",), (4, 4), 0, 8, before=text, most=4000) for text in ("", before)
    )
    lengths = set()
    for step in range(12):
        assert len(plain(step)) == len(behind(step))
        for (short, answer_of_short), (long, answer_of_long) in zip(plain(step), behind(step), strict=True):
            assert long.endswith(short)
            assert answer_of_long == answer_of_short
            assert long.count("The code") == 5
            assert len(long) - len(short) <= 4002
            lengths.add(len(long) - len(short))
    assert max(lengths) > 8 * min(lengths)
    assert len(behind(0)) <= 8 == len(calibrate.fitting_questions(("lookup",), (4, 4), 0, 8)(0))


def right_if(exact, text=(1.0, 1.0, 1.0)):
    return Sheet({("letters", 1): [Answered(1.0, exact)] * 40}, {("text", 32): list(text)}, 1.0)


@pytest.mark.parametrize("method", ["match", "learn", "search"])
def test_the_whole_procedure_writes_a_card_only_for_a_gain(method, tmp_path, capsys):
    """Random weights have nothing to gain on lookups; whichever way the verdict goes, card and words agree with it."""
    big = tiny("llama", max_position_embeddings=2048)
    options = {"fit_sizes": (1, 2), "sizes": (2,), "prompts": 4, "windows": (32,), "text_tokens": 512, "steps": 2}
    options["text_before"] = 300
    found = calibrate.calibrate(big, method=method, out=tmp_path, **options)
    calibrate.print_judgement(found)
    said = capsys.readouterr().out
    card = tmp_path / "calibrate" / f"tiny-llama-{method}-seed0" / "card.json"
    assert card.exists() == bool(found["card"])
    assert bool(found["card"]) == (found["verdict"] != "no gain" and found["worst_rise"] <= 0.005)
    assert ("no card was written" in said) != bool(found["card"])


def test_a_card_is_judged_again_and_the_exit_code_tells(tmp_path, monkeypatch):
    from sharpmax import cli

    big = tiny("llama", max_position_embeddings=2048)
    monkeypatch.setattr(calibrate, "load", lambda name, **_: big)
    sharpmax.Constant(1.1).save(tmp_path / "card.json")
    common = ["--sizes", "2", "--prompts", "4", "--windows", "32", "--text-tokens", "512", "--out", str(tmp_path)]
    judge_card = ["evaluate", "tiny", "--card", str(tmp_path / "card.json"), *common]
    assert cli.main(judge_card) == 3  # random weights have nothing to gain
    monkeypatch.setattr(calibrate, "sit", lambda _, __, policy=None: right_if(policy is not None))
    assert cli.main(judge_card) == 0
    undecided = {False: (1.0, 1.0), True: (0.99, 1.01)}
    monkeypatch.setattr(
        calibrate, "sit", lambda _, __, policy=None: right_if(policy is not None, undecided[policy is not None])
    )
    assert cli.main(judge_card) == 4
    monkeypatch.undo()
    monkeypatch.setattr(calibrate, "load", lambda name, **_: big)
    monkeypatch.setattr(calibrate, "choose", lambda *_, **__: calibrate.Choice(None, None, {}))
    fit = ["--fit-sizes", "1", "2", "--steps", "1", "--text-before", "300"]
    assert cli.main(["calibrate", "tiny", *fit, *common]) == 3
    assert not list((tmp_path / "calibrate").rglob("card.json"))


def test_another_exam_of_the_same_card_goes_into_a_folder_of_its_own(tmp_path):
    big = tiny("llama", max_position_embeddings=2048)
    sharpmax.Constant(1.1).save(tmp_path / "card.json")
    usual = {"sizes": (2,), "prompts": 2, "windows": (32,), "text_tokens": 64, "out": tmp_path}
    for options in ({}, {"sizes": (3,)}, {"prompts": 3}, {}):
        calibrate.evaluate(big, tmp_path / "card.json", **{**usual, **options})
    found = sorted((tmp_path / "evaluate").glob("tiny-llama-card-seed0-*/metrics.json"))
    assert len(found) == 3


def test_a_card_and_a_text_count_by_what_they_say(tmp_path):
    """An edited one makes another run; the same one elsewhere, or with other notes, does not."""
    big = tiny("llama", max_position_embeddings=2048)
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"Line {n}." for n in range(60)))
    usual = {"sizes": (2,), "prompts": 2, "windows": (32,), "text_tokens": 64, "out": tmp_path, "text": text}

    def runs(card):
        calibrate.evaluate(big, card, **usual)
        return len(list((tmp_path / "evaluate").iterdir()))

    card, elsewhere = tmp_path / "card.json", tmp_path / "elsewhere" / "card.json"
    elsewhere.parent.mkdir()
    sharpmax.Constant(1.1).save(card)
    assert runs(card) == 1
    sharpmax.Constant(1.1).save(elsewhere, notes="the same")
    assert runs(elsewhere) == 1
    sharpmax.Constant(1.2).save(card)
    assert runs(card) == 2
    read = calibrate._texts(big, "report", text, 64, 32)["text"]
    text.write_text("\n\n".join(f"Other {n}." for n in range(60)))
    assert runs(card) == 3
    assert not calibrate._texts(big, "report", text, 64, 32)["text"].equal(read)


@pytest.mark.parametrize("wide", [False, True])
def test_a_card_that_text_leaves_undecided_is_written_only_if_its_mean_is_allowed(wide, tmp_path, capsys, monkeypatch):
    big = tiny("llama", max_position_embeddings=2048)
    policy = sharpmax.PerLayer((sharpmax.Constant(1.1),) * 2)
    text = {False: (1.0, 1.0), True: (0.99, 1.03) if wide else (0.99, 1.01)}
    monkeypatch.setattr(calibrate, "sit", lambda _, __, p=None: right_if(p is not None, text[p is not None]))
    monkeypatch.setattr(calibrate, "choose", lambda *_, **__: calibrate.Choice("it", policy, {}))
    options = {"fit_sizes": (1, 2), "sizes": (2,), "prompts": 4, "windows": (32,), "text_tokens": 512, "steps": 1}
    found = calibrate.calibrate(big, out=tmp_path, text_before=300, **options)
    assert found["verdict"] == "undecided"
    calibrate.print_judgement(found)
    said = capsys.readouterr().out
    assert (
        "undecided: answers gain; whether perplexity rises within the allowed +0.50% cannot be told of text in " in said
    )
    assert ("no card was written" in said) == wide == (found["card"] is None)
    if not wide:
        assert load_card(found["card"]).notes == "learn: it; verdict: undecided"


def test_a_judgement_is_printed_with_its_intervals(capsys):
    plain, policy = [0.0, 0.0, 0.0, 1.0], [1.0, 1.0, 0.0, 1.0]
    right, sure = paired_accuracy(plain, policy).to_json(), paired_accuracy([0.0] * 40, [1.0] * 40).to_json()
    text = paired([2.0, 2.1, 2.2], [2.0, 2.11, 2.21])
    one = paired([2.0], [2.01])
    found = {"4096": text, "source 64": one}
    judgement = {
        "tasks": {"lookup": {"8": {"accuracy": right, "loss": right}}},
        "answers_overall": {"accuracy": sure, "loss": sure},
        "text": {
            name: {**each.to_json(), "perplexity_rise": math.expm1(each.difference)} for name, each in found.items()
        },
    }
    metrics = {"judgement": judgement, "time_ratio": 1.0, "most_rise": 0.005, "card": "card.json"}
    calibrate.print_judgement(metrics)
    said = capsys.readouterr().out
    assert "cannot be told of text in windows of 4096, source in windows of 64\nmore text would tell " in said
    low, high = (100 * end for end in paired_accuracy(plain, policy).interval_of_shares)
    assert f"right  25.0% ->  75.0% ({low:+.1f} to {high:+.1f} points; p = 0.5)" in said
    low, high = map(math.expm1, ttest_rel([2.0, 2.11, 2.21], [2.0, 2.1, 2.2]).confidence_interval(0.95))
    assert f"text in windows of 4096: perplexity +0.67% ({low:+.2%} to {high:+.2%}; 3 windows)" in said
    assert "source in windows of 64: perplexity +1.01% (one window: no interval)" in said


def test_text_is_taken_evenly_from_all_of_it():
    ids = torch.arange(1000)[None]
    assert calibrate.spread(ids, 30, 10)[0, ::10].tolist() == [0, 500, 990]
    for tokens in (9, 1000, 2000):
        assert calibrate.spread(ids, tokens, 10).equal(ids[:, :tokens])
    every = calibrate.spread(ids, 990, 10)[0]
    assert len(every) == len(set(every.tolist())) == 990


def test_a_place_that_cannot_be_written_is_said_before_the_card_is_judged(tmp_path, fails_at_work):
    sharpmax.Constant(1.1).save(tmp_path / "card.json")
    (tmp_path / "runs").write_text("a file, not a folder")
    big = tiny("llama", max_position_embeddings=2048)
    options = {"sizes": (2,), "prompts": 2, "windows": (32,), "text_tokens": 512}
    with pytest.raises(OSError, match="runs"):
        calibrate.evaluate(big, tmp_path / "card.json", out=tmp_path / "runs", **options)


def test_an_encoder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not a causal language model"):
        calibrate.calibrate(tiny("bert"), out=tmp_path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sizes": [0]}, "sizes of at least 1, got 0"),
        ({"together": 0}, "together of at least 1, got 0"),
        ({"truth": 2.0}, "truth from 0 to 1, got 2"),
        ({"fit_sizes": (32, 8)}, "fit_sizes from low to high, got 32, 8"),
        ({"fit_sizes": []}, "fit_sizes of at least 1, got none"),
        ({"steps": 0}, "steps of at least 1"),
        ({"text_before": -1}, "text_before of at least 0 characters, got -1"),
        ({"windows": [256, 1]}, "windows of at least 2, got 256, 1"),
        ({"prompts": 0}, "prompts of at least 1"),
        ({"seed": -1}, "a seed of at least 0, got -1"),
        ({"learning_rate": math.nan}, "a learning rate above 0, got nan"),
        ({"penalty": -3.0}, "^expected a penalty of at least 0, got -3.0$"),
        ({"most_rise": math.nan}, "most_rise, a share such as 0.005, of at least 0, got nan"),
        ({"most_rise": -1.0}, "of at least 0, got -1.0"),
        ({"most_rise": 0.0}, "most_rise above 0 for prices to follow"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_before_any_work(options, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        calibrate.calibrate("no model is loaded", out=tmp_path, **options)
    with pytest.raises(FileNotFoundError, match=r"no text file .*missing"):
        calibrate.evaluate("no model is loaded", "card.json", out=tmp_path, text=tmp_path / "missing")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def fails_at_work(monkeypatch):
    """Whatever runs the model on an exam or a fit."""
    for name in ("sit", "learn", "match", "search", "choose"):
        monkeypatch.setattr(calibrate, name, lambda *_, **__: pytest.fail("the model was run"))


@pytest.mark.parametrize("method", ["match", "learn", "search"])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"windows": [32, 4096]}, "windows of at most 2048 tokens, tiny-llama's context, got 4096"),
        ({"tasks": ["lokup"]}, "expected a task among .* got 'lokup'"),
        ({"fit_tasks": ["lokup"]}, "expected a task among .* got 'lokup'"),
        ({"sizes": [200]}, "a question of lookup, size 200, has [0-9]+ tokens; tiny-llama holds 2048"),
        ({"windows": [1024]}, "to choose on, .* has [0-9]+ tokens, and a window 1024|to judge on"),
        ({"text": "empty.txt"}, "the third of .*empty.txt .*has 0 tokens, and a window 32"),
        ({"text": "paragraph.txt"}, "the third of .*paragraph.txt .*has 0 tokens, and a window 32"),
        ({"text": "short.txt"}, "the third of .*short.txt .*has 1[0-9] tokens, and a window 32"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(method, options, says, tmp_path, fails_at_work):
    """And leaves nothing behind, least of all a config that would bar the corrected command."""
    short = "A short text,\n\nof three very,\n\nshort parts.\n"
    for name, content in {"empty": "", "paragraph": "One paragraph.", "short": short}.items():
        (tmp_path / f"{name}.txt").write_text(content)
    usual = {"fit_sizes": (1, 2), "sizes": (2,), "prompts": 4, "windows": (32,), "text_tokens": 512, "steps": 2}
    wanted = {**usual, "text_before": 300, **options}
    if "text" in options:
        wanted["text"] = tmp_path / options["text"]
    with pytest.raises(ValueError, match=says):
        calibrate.calibrate(tiny("llama", max_position_embeddings=2048), method=method, out=tmp_path / "runs", **wanted)
    assert not (tmp_path / "runs").exists()


def test_a_question_to_fit_on_or_a_text_to_match_on_that_does_not_fit_is_refused(tmp_path, fails_at_work):
    options = {"fit_sizes": (1, 2), "sizes": (2,), "prompts": 4, "windows": (32,), "text_tokens": 256, "steps": 2}
    big = tiny("llama", max_position_embeddings=2048)
    with pytest.raises(ValueError, match=r"has \d+ tokens with the text before it; .* lower --text-before"):
        calibrate.calibrate(big, out=tmp_path, text_before=12_000, **{**options, "steps": 20})
    with pytest.raises(ValueError, match=r"match needs 512 tokens or more: the text .* has 256"):
        calibrate.calibrate(big, out=tmp_path, method="match", **options)
    assert not list(tmp_path.iterdir())


def test_a_card_of_another_model_is_refused_before_any_work_and_bars_nothing(tmp_path, fails_at_work):
    sharpmax.PerLayer((sharpmax.Constant(1.1),) * 7).save(tmp_path / "card.json")
    with pytest.raises(ValueError, match="7"):
        calibrate.evaluate(
            tiny("llama", max_position_embeddings=2048), tmp_path / "card.json", out=tmp_path, sizes=(2,), windows=(32,)
        )
    assert [file.name for file in tmp_path.iterdir()] == ["card.json"]


def test_the_usual_windows_are_those_that_the_model_holds():
    usual = {context: tiny("llama", max_position_embeddings=context) for context in (64, 512, 4096)}
    windows = {n: calibrate.held_out_exam(loaded, sizes=(2,), prompts=1).windows for n, loaded in usual.items()}
    assert windows == {64: [64], 512: [256], 4096: [256, 1024, 4096]}


@pytest.mark.parametrize("device", ["cuda", "foo", "meta"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU that is not there")
def test_a_device_that_is_not_there_is_refused_in_one_line(device, tmp_path, capsys):
    from sharpmax import cli

    sharpmax.Constant(1.1).save(tmp_path / "card.json")
    for verb in (["evaluate", "smollm2", "--card", str(tmp_path / "card.json")], ["calibrate", "smollm2"]):
        assert cli.main([*verb, "--device", device, "--out", str(tmp_path)]) == 2
        assert capsys.readouterr().err.startswith(f"sharpmax: error: cannot run on the device '{device}': ")
