"""Importing sharpmax is light, and the import rule of docs/design.md bites."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FRAMEWORKS = {"jax", "torch", "matplotlib", "jinja2", "rich"}


def cost_of(statement: str) -> tuple[float, set[str]]:
    """Return the seconds that `statement` takes after `import numpy`, and the modules loaded after it."""
    code = (
        f"import json, sys, time, numpy\nstart = time.perf_counter()\n{statement}\n"
        "print(json.dumps([time.perf_counter() - start, list(sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, modules = json.loads(done.stdout)
    return seconds, set(modules)


def assert_light(statement: str) -> None:
    # The least of three: a busy machine adds time, it never takes any away.
    measured = [cost_of(statement) for _ in range(3)]
    assert not FRAMEWORKS & measured[0][1]
    assert min(seconds for seconds, _ in measured) < 0.3


def test_import_sharpmax_is_light():
    assert_light("from sharpmax import *")


@pytest.mark.parametrize("heavy", ["import sharpmax, rich", "import sharpmax; time.sleep(0.31)"])
def test_the_check_of_lightness_can_fail(heavy):
    with pytest.raises(AssertionError):
        assert_light(heavy)


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-cache"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the package and its contracts, to break."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copy(ROOT / "pyproject.toml", root)
    shutil.copytree(ROOT / "sharpmax", root / "sharpmax", ignore=shutil.ignore_patterns("__pycache__"))
    return root


def test_the_contracts_are_kept(copy):
    done = lint_imports(copy)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "statement", "contract"),
    [
        ("core/broken.py", "import torch", "core knows no framework"),
        ("core/broken.py", "import sharpmax.report", "each folder imports only what stands below it"),
        ("report/broken.py", "import sharpmax.bench", "each folder imports only what stands below it"),
        ("experiments/broken.py", "import matplotlib", "plotting and templates only in report"),
        ("stray/__init__.py", "", "each folder imports only what stands below it"),
    ],
)
def test_a_broken_contract_is_caught(module, statement, contract, copy):
    file = copy / "sharpmax" / module
    file.parent.mkdir(exist_ok=True)
    file.write_text(statement)
    try:
        done = lint_imports(copy)
    finally:
        file.unlink()
        if file.name == "__init__.py":
            file.parent.rmdir()
    assert done.returncode == 1
    assert f"{contract} BROKEN" in done.stdout
