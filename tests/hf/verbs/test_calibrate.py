"""`sharpmax calibrate`: what it writes, and what it refuses before any work."""

import math

import numpy as np
import pytest
import torch

import sharpmax
from sharpmax import cli
from sharpmax.core.cards import load_card
from sharpmax.hf.calibration.choose import Choice
from sharpmax.hf.models.gemma import gemma
from sharpmax.hf.models.load import LoadedModel, load
from sharpmax.hf.verbs import calibrate, judgement
from sharpmax.hf.verbs.evaluate import evaluate
from tests.hf.tiny import tiny
from tests.hf.verbs.sheets import right_if
from tests.marks import slow

QUICK = {"fit_sizes": (1, 2), "sizes": (2,), "prompts": 4, "windows": (32,), "text_tokens": 512, "steps": 2}
QUICK |= {"text_before": 300}


@pytest.mark.parametrize("method", ["learn", *slow("match", "search")])
def test_the_whole_procedure_writes_a_card_only_for_a_gain(method, big, tmp_path):
    """Random weights have nothing to gain on lookups; whichever way the verdict goes, card and words agree with it."""
    found = calibrate.calibrate(big, method=method, out=tmp_path, **QUICK)
    said = found.summary()
    card = tmp_path / "calibrate" / f"tiny-llama-{method}-seed0" / "card.json"
    assert card.exists() == bool(found["card"])
    assert bool(found["card"]) == (found["verdict"] != "no gain" and found["worst_rise"] <= 0.005)
    assert ("no card was written" in said) != bool(found["card"])


@pytest.mark.parametrize("wide", [False, True])
def test_a_card_that_text_leaves_undecided_is_written_only_if_its_mean_is_allowed(wide, big, tmp_path, monkeypatch):
    policy = sharpmax.PerLayer((sharpmax.Constant(1.1),) * 2)
    text = {False: (1.0, 1.0), True: (0.99, 1.03) if wide else (0.99, 1.01)}
    monkeypatch.setattr(judgement, "sit", lambda _, __, p=None, **___: right_if(p is not None, text[p is not None]))
    monkeypatch.setattr(calibrate, "choose", lambda *_, **__: Choice("it", policy, {}))
    found = calibrate.calibrate(big, out=tmp_path, **QUICK)
    assert found["verdict"] == "undecided"
    said = found.summary()
    assert (
        "undecided: answers gain; whether perplexity rises within the allowed +0.50% cannot be told of text in " in said
    )
    assert ("no card was written" in said) == wide == (found["card"] is None)
    if not wide:
        assert load_card(found["card"]).notes == "learn: it; verdict: undecided"


def test_a_merged_scale_is_a_model_of_its_own(tmp_path, monkeypatch):
    """It is saved with its tokenizer, loads by its folder, and the model that was calibrated is as it was."""
    model = gemma("gemma-tiny")
    before = {name: value.clone() for name, value in model.model.state_dict().items()}
    monkeypatch.setattr(judgement, "sit", lambda _, __, p=None, **___: right_if(p is not None, (1.0, 1.0)))
    monkeypatch.setattr(calibrate, "choose", lambda _, fitted, *__, **___: Choice("it", fitted.kept(1.0, 4.0), {}))
    (tmp_path / "text.txt").write_text("\n\n".join(f"Paragraph {n} of a text to read." for n in range(30)))
    options = {**QUICK, "text": tmp_path / "text.txt", "text_tokens": 64, "text_before": 30}
    found = calibrate.calibrate(model, method="seal-h", out=tmp_path, **options)
    assert found.card is None
    assert f"merged model: {found.metrics['merged']}" in found.summary()
    assert "sharpmax.hf.load(" in found.next_step()
    merged = load(found.metrics["merged"])
    changed = {name for name, value in merged.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {f"model.layers.{layer}.self_attn.o_proj.weight" for layer in range(2)}
    assert merged.tokens("a b").tolist() == model.tokens("a b").tolist()
    assert all(torch.equal(value, before[name]) for name, value in model.model.state_dict().items())


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
    assert not list(tmp_path.iterdir())


def test_a_text_that_is_not_there_is_refused_before_any_work(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no text file .*missing"):
        evaluate("no model is loaded", "card.json", out=tmp_path, text=tmp_path / "missing")
    assert not list(tmp_path.iterdir())


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
def test_what_does_not_fit_is_refused_before_any_work(method, options, says, big, tmp_path, fails_at_work):
    """And leaves nothing behind, least of all a config that would bar the corrected command."""
    short = "A short text,\n\nof three very,\n\nshort parts.\n"
    for name, content in {"empty": "", "paragraph": "One paragraph.", "short": short}.items():
        (tmp_path / f"{name}.txt").write_text(content)
    wanted = {**QUICK, **options}
    if "text" in options:
        wanted["text"] = tmp_path / options["text"]
    with pytest.raises(ValueError, match=says):
        calibrate.calibrate(big, method=method, out=tmp_path / "runs", **wanted)
    assert not (tmp_path / "runs").exists()


def test_a_question_to_fit_on_or_a_text_to_match_on_that_does_not_fit_is_refused(big, tmp_path, fails_at_work):
    options = {**QUICK, "text_tokens": 256}
    with pytest.raises(ValueError, match=r"has \d+ tokens with the text before it; .* lower --text-before"):
        calibrate.calibrate(big, out=tmp_path, **{**options, "text_before": 11_000, "steps": 20})
    with pytest.raises(ValueError, match=r"match needs 512 tokens or more: the text .* has 256"):
        calibrate.calibrate(big, out=tmp_path, method="match", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("device", ["cuda", "foo", "meta"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU that is not there")
def test_a_device_that_is_not_there_is_refused_in_one_line(device, card, tmp_path, capsys):
    for verb in (["evaluate", "smollm2", "--card", str(card)], ["calibrate", "smollm2"]):
        assert cli.main([*verb, "--device", device, "--out", str(tmp_path)]) == 2
        assert capsys.readouterr().err.startswith(f"sharpmax: error: cannot run on the device '{device}': ")


@pytest.mark.parametrize("kills_per_stage", [(1, 1, 1), *slow((4, 3, 3))])
def test_killed_at_random_moments_it_ends_with_the_same_metrics(kills_per_stage, tmp_path, monkeypatch):
    """In the fit, while choosing and while judging: what differs at the end is measured times alone."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"Line {n} of a text about {n * n} things." for n in range(120)))
    big = tiny("llama", max_position_embeddings=1024)
    options = {**QUICK, "prompts": 6, "text_tokens": 128, "steps": 7, "text_before": 50}
    options |= {"text": text, "most_rise": 50.0, "quiet": True}
    calls, ends, killed_at = [], [], None
    read, judge = LoadedModel.hidden, calibrate.judge

    def hidden(self, ids):
        calls.append(ids)
        if len(calls) == killed_at:
            raise KeyboardInterrupt
        return read(self, ids)

    def noting(of):
        """Note how many passes there were when a stage began."""
        return lambda *a, **k: ends.append(len(calls)) or of(*a, **k)

    monkeypatch.setattr(LoadedModel, "hidden", hidden)
    for name, of in (("learn", calibrate.learn), ("choose", calibrate.choose), ("judge", judge)):
        monkeypatch.setattr(calibrate, name, noting(of))

    def metrics(folder):
        found = calibrate.calibrate(big, out=tmp_path / folder, **options).metrics
        return {name: value for name, value in found.items() if name not in ("fitting_seconds", "reading_time", "card")}

    whole = metrics("whole")
    assert whole["judgement"] is not None, "the test needs a candidate that is judged"
    stages = zip(ends, [*ends[1:], len(calls)], kills_per_stage, strict=True)
    rng = np.random.default_rng(0)
    for begin, end, kills in list(stages):
        for moment in rng.integers(begin + 1, end + 1, size=kills).tolist():
            calls.clear()
            killed_at = moment
            with pytest.raises(KeyboardInterrupt):
                metrics(f"killed-{moment}")
            killed_at = None
            assert metrics(f"killed-{moment}") == whole


def test_a_quick_run_says_the_windows_that_it_read(tmp_path, monkeypatch):
    """It said 256 whatever was asked for."""
    monkeypatch.setattr(judgement.JudgedResult, "summary", lambda _: "judged")
    for options, read in (({"windows": [64, 128]}, "64, 128"), ({}, "256")):
        said = calibrate.CalibrationResult({"quick": True, "options": options}, tmp_path, "tiny").summary()
        assert f"judges text in windows of {read} tokens only" in said
