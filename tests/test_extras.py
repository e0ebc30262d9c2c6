"""A missing optional dependency is one line that names the extra."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from sharpmax.extras import MissingExtraError, extra
from tests.places import ROOT


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


BARE = ("numpy", "numpy.libs", "array_api_compat", "rich", "markdown_it", "mdurl", "pygments")
"""What `pip install sharpmax` brings, as folders."""
NEEDS = {
    "reproduce": "report",
    "reproduce bounds": "report",
    "reproduce max-retrieval": "jax",
    "reproduce clrs-text": "hf",
    "bench attention": "torch",
    "bench attention --framework jax": "jax",
    "bench diagnose": "hf",
    "bench finetune": "hf",
    "bench training-step": "jax",
    "diagnose model": "hf",
    "certify model": "hf",
    "calibrate model": "hf",
    "evaluate model --card smollm2": "hf",
    "finetune model": "hf",
}
WORKS = ["models", "bench softmax --help"]
EVERY_COMMAND = """
import contextlib, io, json, sys
import numpy, sharpmax, sharpmax.core
from sharpmax.cli import main

found = {"softmax": float(sharpmax.softmax(numpy.zeros(4)).sum())}
for command in sys.argv[1:]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(command.split())
        except SystemExit as exit:
            status = exit.code
    found[command] = status, out.getvalue(), err.getvalue()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each command says where there is nothing but the dependencies that are no extra; one process runs all."""
    folder = tmp_path_factory.mktemp("bare")
    for name in BARE:
        if (there := Path(sysconfig.get_path("platlib")) / name).exists():
            (folder / name).symlink_to(there)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT)))}
    command = [sys.executable, "-S", "-c", EVERY_COMMAND, *NEEDS, *WORKS]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_without_extras_the_core_works(said):
    assert said["softmax"] == 1


@pytest.mark.parametrize("command", NEEDS)
def test_without_extras_every_command_says_in_one_line_which_it_needs(said, command):
    status, out, err = said[command]
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.endswith(f"is not installed; it comes with: pip install 'sharpmax[{NEEDS[command]}]'\n")


@pytest.mark.parametrize("command", WORKS)
def test_without_extras_some_commands_work(said, command):
    status, out, err = said[command]
    assert (status, err) == (0, "")
    assert out
