"""Where a number came from: versions, device, commit and command, for every result file."""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import sharpmax
from sharpmax.builtin import BUILTIN
from sharpmax.core.cards import CARD_FILE
from sharpmax.files.checksums import of_file

MODEL_FILES = {".json", ".safetensors", ".bin", ".model", ".txt"}  # of weights, config and tokenizer
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


def weights_of_folder(model: str) -> dict[str, str]:
    """Return what a config says of a model beside its name: of a folder, a fingerprint of its files.

    A folder that was trained on since is another model. Of a model by name it says nothing: a built-in one is pinned.
    """
    folder = Path(model)
    if model in BUILTIN or not folder.is_dir():
        return {}
    files = sorted(file for file in folder.iterdir() if file.suffix in MODEL_FILES and file.name != CARD_FILE)
    told = [f"{file.name} {of_file(file)}" for file in files if file.is_file()]
    return {"weights": hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]}


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
