"""Progress: bars in a terminal, lines elsewhere, never five seconds of silence, and nothing when quiet."""

import os
import pty
import subprocess
import sys
import time
from contextlib import nullcontext

import pytest

from sharpmax.hf.models.gemma import gemma
from sharpmax.runs import progress
from sharpmax.runs.progress import duration, progress_bars, say_estimate, shown, stage
from tests.commands.test_serve_check import server

TEXT = "\n\n".join(f"Line {n} of a text about {n * n} things." for n in range(900))
MOST_SILENT = 5.0


@pytest.fixture
def spoken(monkeypatch, capsys):
    """Return what tells the lines on standard error so far; they come after a tenth of a second of silence."""
    monkeypatch.setattr(progress, "SILENT", 0.1)
    return lambda: capsys.readouterr().err


def test_a_stage_says_how_far_it_is_and_what_is_left(spoken):
    with shown(), stage("fit", 4) as advance:
        advance(2, note="loss 0.5")
        time.sleep(0.7)
    assert "fit 2 of 4, loss 0.5, 1 s, about 1 s left\n" in spoken()


def test_no_time_left_is_told_from_the_first_thousandth_of_the_work(spoken):
    with shown(), stage("fit", 5000) as advance:
        advance(5)
        time.sleep(0.7)
    said = spoken()
    assert "fit 5 of 5,000" in said
    assert "left" not in said


def test_a_stage_that_takes_more_than_it_said_is_still_named(spoken):
    with shown(), stage("fit", 2) as advance:
        advance(3)
        time.sleep(0.7)
    assert "fit 3 of 2" in spoken()


def test_a_stage_outside_of_shown_and_a_quiet_one_say_nothing(spoken):
    for outside in (shown(quiet=True), nullcontext()):
        with outside, stage("fit", 2) as advance:
            advance(total=3)
            say_estimate(10)
            time.sleep(0.4)
    with shown(quiet=True), progress_bars() as bars:
        bars.add_task("other", note="")
        time.sleep(0.4)
    assert spoken() == ""


def test_an_estimate_names_the_machine_and_advises_a_gpu_for_hours(spoken):
    with shown():
        say_estimate(360, advice="--quick takes less")  # short enough: doctor, for one, has no --quick
        say_estimate(8000, advice="--quick takes less")
        say_estimate(8000, "cuda:0")
    assert spoken().splitlines() == [
        "this takes about 6 min on this CPU",
        "this takes about 2 h 13 min on this CPU; a GPU is advised (--quick takes less)",
        "this takes about 2 h 13 min on cuda:0",
    ]


def test_durations_are_as_people_say_them():
    assert [duration(s) for s in (0.2, 8.2, 89, 200, 8000)] == ["1 s", "8 s", "89 s", "3 min", "2 h 13 min"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    loaded = gemma("gemma-tiny", seed=0, device="cpu")
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    (folder.parent / "text.txt").write_text(TEXT)
    return folder


SMALL = "--sizes 2 --prompts 4 --windows 32 --text-tokens 128 --text text.txt"
VERBS = {
    "diagnose": "diagnose tiny --text text.txt --lengths 16 64",
    "certify": "certify tiny --text text.txt --length 32",
    "calibrate": f"calibrate tiny --fit-sizes 1 2 --steps 2 --text-before 50 {SMALL}",
    "evaluate": f"evaluate tiny --card card.json {SMALL}",
    "doctor": "doctor tiny --card card.json",
    "finetune": "finetune gemma-tiny --steps 2 --tokens 1024 --algorithms minimum --train-lengths 4 --test-lengths 4 "
    "--examples 16 --test-samples 1",
    "reproduce": "reproduce bounds --quick",
    "compare": "compare --quick --tasks recall --arms softmax --seeds 1 --steps 4",
}
EXPERIMENTS = ("recall --seeds 1", "blow-up", "max-retrieval")  # with bars of their own, with lines only, with JAX


def watched(command, folder, terminal):
    """Run a command in a terminal or without one; return its output, its status, and the longest silence."""
    import sharpmax

    sharpmax.Constant(1.1).save(folder / "card.json")
    reads, writes = pty.openpty() if terminal else os.pipe()
    began = latest = time.monotonic()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    arguments = [sys.executable, "-m", "sharpmax", *command.split()]
    process = subprocess.Popen(arguments, stdout=writes, stderr=writes, cwd=folder, env=environment)
    os.close(writes)
    output, longest = b"", 0.0
    while True:
        try:
            part = os.read(reads, 65536)
        except OSError:  # the end, of a terminal
            part = b""
        now = time.monotonic()
        longest, latest = max(longest, now - latest), now
        if not part:
            break
        output += part
    os.close(reads)
    assert now - began >= longest
    return output.decode(), process.wait(), longest


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_is_silent_for_five_seconds_and_each_ends_with_what_to_do_next(verb, terminal, model):
    # A folder of its own: a finished run would be read back.
    output, status, longest = watched(f"{VERBS[verb]} --out runs-{terminal}", model.parent, terminal)
    assert status in (0, 3, 4), output
    assert longest < MOST_SILENT, output
    assert "takes " in output
    assert "next: " in output.splitlines()[-1]
    assert "\\x1b" not in output  # the bars' own colours are no text
    assert ("\x1b[" in output) == terminal


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_no_experiment_is_silent_for_five_seconds(experiment, terminal, tmp_path):
    output, status, longest = watched(f"reproduce {experiment} --quick", tmp_path, terminal)
    assert status == 0, output
    assert longest < MOST_SILENT, output
    assert "next: " in output.splitlines()[-1]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_server_that_takes_its_time_is_asked_with_a_bar(terminal, tmp_path):
    def slow(_):
        time.sleep(0.7)
        return " 0000."

    with server(slow) as url:
        command = f"serve-check {url} --card card.json --sizes 4 --prompts 8 --together 1"
        output, status, longest = watched(command, tmp_path, terminal)
    assert status == 4, output  # the card has no record
    assert longest < MOST_SILENT, output
    assert f"asking {url}" in output


@pytest.mark.slow
def test_a_quiet_verb_prints_its_result_alone(model):
    output, status, _ = watched(f"{VERBS['certify']} --quiet", model.parent, terminal=False)
    assert status == 0
    assert "takes about" not in output
    assert output.startswith("seen on 32 tokens")
    assert "next: " in output.splitlines()[-1]
