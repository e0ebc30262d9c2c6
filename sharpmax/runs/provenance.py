"""Where a number came from: versions, device, commit and command, for every result file."""

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import sharpmax

FRAMEWORKS = ("jax", "optax", "scipy", "torch", "transformers")


def provenance() -> dict[str, Any]:
    """Describe this process: `{"versions", "device", "commit", "command"}`.

    Frameworks are listed only if they were imported; `commit` is None outside a checkout and ends in `-dirty` when
    tracked files differ from it.
    """
    return {"versions": _versions(), "device": _device(), "commit": commit(), "command": _command()}


def _versions() -> dict[str, str]:
    import numpy  # here: the command line lists benchmarks without it

    modules = [numpy, *(sys.modules[name] for name in FRAMEWORKS if name in sys.modules)]
    versions = {module.__name__: str(module.__version__) for module in modules}
    return {"sharpmax": sharpmax.__version__, "python": platform.python_version(), **versions}


def _device() -> str:
    """Name what computed: an accelerator that an imported framework holds, else the processor."""
    if (jax := sys.modules.get("jax")) and jax.default_backend() != "cpu":
        return str(jax.devices()[0].device_kind)
    if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized():
        return str(torch.cuda.get_device_name())
    return f"{platform.machine()} cpu, {os.cpu_count()} cores"


def commit() -> str | None:
    """Return the commit this code is at, with `-dirty` where tracked files differ; None outside a checkout."""
    if named := os.environ.get("SHARPMAX_COMMIT"):  # of a tree that was copied without its .git
        return named
    package = Path(sharpmax.__file__).parent
    # An installed copy may lie inside someone else's checkout; only a tracked file makes the commit ours.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return _git(package, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _command() -> str:
    program, package = Path(sys.argv[0]), Path(sharpmax.__file__).parent
    typed = [program.name]
    if program.name == "__main__.py":
        typed = ["python", "-m", "sharpmax"]
    elif program.is_relative_to(package):
        typed = ["python", "-m", ".".join(program.relative_to(package.parent).with_suffix("").parts)]
    return shlex.join([*typed, *sys.argv[1:]])
