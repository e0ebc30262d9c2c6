"""The scripts of examples/ run, and leave what they promise."""

import os
import subprocess
import sys

import pytest

from sharpmax.runs.watched import read_record
from tests.places import ROOT


@pytest.mark.slow
def test_accelerate_trains_watched_and_clipped(tmp_path):
    script = ROOT / "examples" / "watch_accelerate.py"
    command = [sys.executable, str(script), "--out", str(tmp_path), "--steps", "6", "--threshold", "0.5"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert "sharpmax monitor" in done.stdout
    assert [line["step"] for line in read_record(tmp_path).steps] == [0, 2, 4]
