"""Runs a script of this folder where Triton compiles: the tests' own process may have it interpret kernels."""

import json
import os
import subprocess
import sys
from pathlib import Path


def printed_by(module, *arguments):
    """Return what a module prints as JSON when it is run as a script, by a Python of its own."""
    script = Path(module.__file__)
    root = Path(__file__).parents[3]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, cwd=root,
        env=environment | {"PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
