"""Runs a script of this folder where Triton compiles: the tests' own process may have it interpret kernels."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.places import ROOT


def printed_by(module, *arguments):
    """Return what a module prints as JSON when it is run as a script, by a Python of its own."""
    script = Path(module.__file__)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, cwd=ROOT,
        env=environment | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
