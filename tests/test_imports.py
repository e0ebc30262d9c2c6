"""Importing sharpmax is light, and the import rule of docs/design.md bites."""

import json
import shutil
import subprocess
import sys

import pytest

from tests.places import ROOT

BELOW = "each folder imports only what stands below it"
FRAMEWORKS = {"jax", "torch", "matplotlib", "jinja2", "rich"}


def cost_of(statement: str) -> tuple[float, set[str]]:
    """Return the processor seconds that `statement` takes after `import numpy`, and the modules loaded after it."""
    code = (
        f"import json, sys, time, numpy\nstart = time.process_time()\n{statement}\n"
        "print(json.dumps([time.process_time() - start, list(sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, modules = json.loads(done.stdout)
    return seconds, set(modules)


def assert_light(statement: str) -> None:
    # The least of three: what else runs on the machine adds time, it never takes any away.
    measured = [cost_of(statement) for _ in range(3)]
    assert not FRAMEWORKS & measured[0][1]
    assert min(seconds for seconds, _ in measured) < 0.3


def test_import_sharpmax_is_light():
    assert_light("from sharpmax import *")


@pytest.mark.parametrize(
    "heavy", ["import sharpmax, rich", "import sharpmax\nwhile time.process_time() - start < 0.31: pass"]
)
def test_the_check_of_lightness_can_fail(heavy):
    with pytest.raises(AssertionError):
        assert_light(heavy)


BROKEN = {
    "core/uses_torch.py": ("import torch", "core knows no framework", "sharpmax.core.uses_torch -> torch"),
    "core/uses_report.py": ("import sharpmax.report", BELOW, "sharpmax.core.uses_report -> sharpmax.report"),
    "report/uses_bench.py": ("import sharpmax.bench", BELOW, "sharpmax.report.uses_bench -> sharpmax.bench"),
    "experiments/plots.py": (
        "import matplotlib",
        "plotting and templates only in report",
        "sharpmax.experiments.plots -> matplotlib",
    ),
    "stray/__init__.py": ("", BELOW, "stray"),
}
"""A module that breaks a contract, what it says, the contract, and how the message names it."""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What the contracts say of a copy of the package in which each of BROKEN stands; `make test` holds the package."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copy(ROOT / "pyproject.toml", root)
    shutil.copytree(ROOT / "sharpmax", root / "sharpmax", ignore=shutil.ignore_patterns("__pycache__"))
    for module, (statement, _, _) in BROKEN.items():
        (root / "sharpmax" / module).parent.mkdir(exist_ok=True)
        (root / "sharpmax" / module).write_text(statement)
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-cache"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    return done.stdout


@pytest.mark.parametrize("module", BROKEN)
def test_a_broken_contract_is_caught(module, said):
    _, contract, named = BROKEN[module]
    assert f"{contract} BROKEN" in said
    assert named in said
