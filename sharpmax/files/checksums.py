"""What was written is what is read: a sha256 beside it tells a file that was edited, or has lost a bit.

This finds damage and edits by hand. It is no signature: who can write the file can write its checksum.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from sharpmax.files import atomic
from sharpmax.files.untrusted import read_json

SEAL = "sha256"
RECORD = "checksums.json"


def of_file(path: Path) -> str:
    """Return the sha256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_sha256(file: Path, expected: str, source: str = "your package index") -> None:
    """Raise OSError where a file that `source` served is not the one that was tested."""
    found = of_file(file)
    if found != expected:
        raise OSError(
            f"{file.name} has sha256 {found}, expected {expected}: it is not the file that was tested, "
            f"so it is not used; find out what {source} serves"
        )


def write_sealed(file: Path, content: dict[str, Any]) -> None:
    """Write an object as JSON, with a checksum of itself and of the file's name among its fields."""
    stored = json.loads(atomic.as_json(content))
    atomic.write_json(file, {**stored, SEAL: _seal(file, stored)})


def require_sealed(file: Path, content: dict[str, Any], advice: str) -> dict[str, Any]:
    """Return an object that was read from `file`, without its checksum.

    One without a checksum was written by an earlier version, and is taken as it is.

    Raises:
        ValueError: it is not what was written there.
    """
    stored = {name: value for name, value in content.items() if name != SEAL}
    if SEAL in content and content[SEAL] != _seal(file, stored):
        raise ValueError(f"{file} is not as it was written: it was edited, renamed or damaged; {advice}")
    return stored


def record(folder: Path) -> None:
    """Write the checksums of all files in a folder into the folder."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file != folder / RECORD)
    atomic.write_json(folder / RECORD, {file.relative_to(folder).as_posix(): of_file(file) for file in files})


def require_recorded(folder: Path, advice: str) -> None:
    """Read every file that `record` saw, and raise OSError if one is missing or is not as it was."""
    recorded = read_json(folder / RECORD, expected="a list of checksums", advice=advice)
    if not isinstance(recorded, dict):
        raise OSError(f"{folder / RECORD} is not a list of checksums by file; {advice}")
    for name, expected in recorded.items():
        if not (folder / name).is_file():
            raise OSError(f"{folder / name} is missing; {advice}")
        if of_file(folder / name) != expected:
            raise OSError(f"{folder / name} is not as it was written: its sha256 differs; {advice}")


def _seal(file: Path, stored: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps([file.name, stored], sort_keys=True).encode()).hexdigest()
