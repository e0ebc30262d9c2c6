"""A package of Debian by its path and checksum, and the files inside it; into the cache, as wheels are.

A .deb is an `ar` archive with a tar inside. Nothing is installed and nothing of the package is run: its files are read.
The mirror is `$SHARPMAX_DEBIAN`, or Debian's own; a file:// address serves where there is no network.
"""

import io
import os
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sharpmax.files.checksums import require_sha256
from sharpmax.files.kept import kept
from sharpmax.files.wheels import cache_folder

MIRROR = "http://deb.debian.org/debian"  # its own redirections need no TLS: the checksum says what came
TIMEOUT = 60  # seconds without a byte
MAGIC, ENTRY = b"!<arch>\n", 60  # of an ar archive: what it begins with, and the bytes before each file


@dataclass(frozen=True)
class Package:
    """One package, exactly: its name, its path below the mirror, and its sha256."""

    name: str
    path: str
    sha256: str


def files_of(package: Package, wanted: Callable[[str], bool]) -> Path:
    """Return a folder of the cache with the wanted files of a package, and its copyright; fetched the first time.

    `wanted` is asked by a file's path in the package, as `usr/share/doc/x/y.txt`. Files lie flat in the folder.

    Raises:
        OSError: the package cannot be had, or is not the one expected; or a file of the folder has changed.
    """
    folder = cache_folder() / "debian" / f"{package.name}-{package.sha256[:8]}"

    def make(place: Path) -> Path:
        file = place / PurePosixPath(package.path).name
        _download(package, file, folder)
        require_sha256(file, package.sha256, "your mirror")
        (place / "made").mkdir()
        of_license = f"usr/share/doc/{package.name}/copyright"
        with tarfile.open(fileobj=io.BytesIO(_data_of(file))) as archive:
            for member in archive:
                path = member.name.removeprefix("./")
                if member.isfile() and (path == of_license or wanted(path)):
                    read = archive.extractfile(member)
                    assert read is not None
                    with read, (place / "made" / PurePosixPath(path).name).open("wb") as out:
                        shutil.copyfileobj(read, out)
        return place / "made"

    return kept(folder, make)


def _download(package: Package, target: Path, folder: Path) -> None:
    address = f"{os.environ.get('SHARPMAX_DEBIAN', MIRROR).rstrip('/')}/{package.path}"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as answer, target.open("wb") as out:
            shutil.copyfileobj(answer, out)
    except (urllib.error.URLError, OSError) as error:
        why = getattr(error, "reason", error)
        raise OSError(
            f"could not fetch {address} ({why}); set SHARPMAX_DEBIAN to a mirror that has it, or copy its folder to "
            f"{folder}: then this works without a network"
        ) from error


def _data_of(file: Path) -> bytes:
    """Return the tar of files in a .deb, compressed as it is; raises OSError where there is none."""
    content = file.read_bytes()
    at = len(MAGIC)
    while content.startswith(MAGIC) and at + ENTRY <= len(content):
        name, size = content[at : at + 16].decode("ascii").strip(), int(content[at + 48 : at + 58])
        at += ENTRY
        if name.startswith("data.tar"):
            return content[at : at + size]
        at += size + size % 2
    raise OSError(f"{file.name} is no package of Debian: it has no data.tar")
