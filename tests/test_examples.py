"""The scripts of examples/ run, and print what is committed beside them."""

import os
import re
import subprocess
import sys

import pytest

from sharpmax.runs.watched import read_record
from tests.places import ROOT

TRAINED = ROOT / "examples" / "watch_accelerate.py"  # takes options, and leaves a record
EXAMPLES = sorted(set((ROOT / "examples").glob("*.py")) - {TRAINED})
NUMBER = re.compile(r"-?\d+\.\d+")


def words(text):
    """Return a text without the digits of its decimal numbers, and these numbers."""
    return NUMBER.sub("x", text).split(), [float(number) for number in NUMBER.findall(text)]


def test_there_are_six_each_with_its_output():
    assert len(EXAMPLES) == 6
    outputs = {path.stem for path in (ROOT / "examples" / "outputs").glob("*.txt")}
    assert outputs == {path.stem for path in EXAMPLES}


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_it_prints_what_is_committed(example, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(example)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    expected = (ROOT / "examples" / "outputs" / f"{example.stem}.txt").read_text(encoding="utf-8")
    found, wanted = words(done.stdout), words(expected)
    assert found[0] == wanted[0]
    # Another processor rounds otherwise: a trained model may answer a few questions of 512 differently.
    assert found[1] == pytest.approx(wanted[1], rel=0.02, abs=0.02)


def test_the_comparison_can_fail():
    assert words("loss 0.14, head 1.5")[0] == words("loss 0.20, head 1.5")[0]
    assert words("loss 0.14")[1] != pytest.approx(words("loss 0.20")[1], rel=0.02, abs=0.02)
    assert words("gain 1.0")[0] != words("loss 1.0")[0]


@pytest.mark.slow
def test_accelerate_trains_watched_and_clipped(tmp_path):
    command = [sys.executable, str(TRAINED), "--out", str(tmp_path), "--steps", "6", "--threshold", "0.5"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert "sharpmax monitor" in done.stdout
    assert [line["step"] for line in read_record(tmp_path).steps] == [0, 2, 4]
