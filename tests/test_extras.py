"""A missing optional dependency is one line that names the extra."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from sharpmax.extras import MissingExtraError, extra


def test_names_the_module_and_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with (
        pytest.raises(MissingExtraError, match=r"jinja2 is not installed.*pip install 'sharpmax\[report\]'"),
        extra("report"),
    ):
        import jinja2  # noqa: F401


def test_other_errors_pass():
    with pytest.raises(ZeroDivisionError), extra("report"):
        raise ZeroDivisionError


ROOT = Path(__file__).parent.parent
BARE = ("numpy", "numpy.libs", "array_api_compat", "rich", "markdown_it", "mdurl", "pygments")
"""What `pip install sharpmax` brings, as folders."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Run Python where there is nothing but the dependencies that are no extra."""
    folder = tmp_path_factory.mktemp("bare")
    for name in BARE:
        if (there := Path(sysconfig.get_path("platlib")) / name).exists():
            (folder / name).symlink_to(there)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT)))}
        return subprocess.run(
            [sys.executable, "-S", *arguments], cwd=folder, env=environment, capture_output=True, text=True
        )

    return run


def test_without_extras_the_core_works(bare):
    code = "import numpy, sharpmax, sharpmax.core; print(sharpmax.softmax(numpy.zeros(4)).sum())"
    assert bare("-c", code).stdout == "1.0\n"


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("reproduce", "report"),
        ("reproduce bounds", "report"),
        ("reproduce max-retrieval", "jax"),
        ("reproduce clrs-text", "hf"),
        ("bench attention", "torch"),
        ("bench attention --framework jax", "jax"),
        ("bench diagnose", "hf"),
        ("bench finetune", "hf"),
        ("bench training-step", "jax"),
        ("diagnose model", "hf"),
        ("certify model", "hf"),
        ("calibrate model", "hf"),
        ("evaluate model --card card.json", "hf"),
        ("finetune model", "hf"),
    ],
)
def test_without_extras_every_command_says_in_one_line_which_it_needs(bare, command, extra):
    done = bare("-m", "sharpmax", *command.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith(f"is not installed; it comes with: pip install 'sharpmax[{extra}]'\n")


@pytest.mark.parametrize("command", ["models", "bench softmax --help"])
def test_without_extras_some_commands_work(bare, command):
    assert bare("-m", "sharpmax", *command.split()).returncode == 0
