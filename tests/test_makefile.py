"""The two commands: they find a Python or say so, and install only when there is something new to install."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def make(tmp_path):
    """Run make in a folder that has nothing but what the Makefile reads."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        # The tests themselves may run under make; its variables must not reach this one.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        return subprocess.run(["make", *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run


@pytest.mark.parametrize("command", ["reproduce", "test"])
def test_without_a_usable_python_it_says_what_to_do(make, command):
    done = make("PYTHON=no-such-python", command)
    assert done.returncode != 0
    assert "needs Python 3.11 or newer" in done.stderr
    assert "no-such-python" in done.stderr


def test_installs_once_and_again_when_a_pin_changes(make, tmp_path):
    assert "pip install" in make("--dry-run", "reproduce").stdout
    (tmp_path / ".venv").mkdir()
    for stamp in ("created", "installed-reproduce", "installed-test"):
        (tmp_path / ".venv" / stamp).touch()
    for command in ("reproduce", "test"):
        assert "pip install" not in make("--dry-run", command).stdout
    later = time.time() + 10
    os.utime(tmp_path / "constraints.txt", (later, later))
    for command in ("reproduce", "test"):
        assert "pip install" in make("--dry-run", command).stdout


def test_every_pin_is_exact():
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert pins
    for pin in pins:
        name, _, version = pin.partition("==")
        assert name
        assert version
        assert "+" not in version
