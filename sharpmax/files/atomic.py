"""Files that are either absent or whole: written beside their place, then moved there in one step.

A process killed at any moment leaves the old file or the new one, never half of one.
"""

import json
import os
import secrets
import tempfile
from contextlib import suppress
from errno import EINVAL, EISDIR
from pathlib import Path
from typing import Any


def write_bytes(path: Path, content: bytes) -> None:
    """Put `content` at `path`, replacing what was there, in one step. Makes the folder if it is missing.

    A link is replaced, not followed: a stranger's run folder could lead anywhere.

    Raises:
        OSError: with the file's name, also where the system's own error has none, as that of a full disk; or a device
            or a pipe, which would be gone.
    """
    if path.is_dir():
        raise IsADirectoryError(EISDIR, "expected the path of a file, got a folder", str(path))
    _require_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not mkstemp, whose files are private: a result is for everyone whom the user's own settings admit.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):  # an error that comes of the first one would hide it
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def require_writable(path: Path) -> None:
    """Raise OSError now, before the work is done, if a file at `path` could not be written later."""
    if path.is_dir():
        raise IsADirectoryError(f"expected the path of a file, got the folder {path}")
    _require_replaceable(path)
    require_folder(path.parent)


def _require_replaceable(path: Path) -> None:
    """Raise OSError where a file at `path` would take the place of a device or a pipe, as of /dev/stdout."""
    # A link into /proc is an open file of this process, whatever it is.
    is_open_file = path.is_symlink() and path.readlink().is_relative_to("/proc")
    if is_open_file or (path.exists() and not path.is_file()):
        raise OSError(EINVAL, "expected the path of a regular file, got a device or a pipe", str(path))


def require_folder(folder: Path) -> None:
    """Raise OSError now if a folder could not be made, or written into, later. Leaves nothing behind.

    What is missing of it is made elsewhere, inside what is there: the work may still be refused for other reasons.
    """
    there = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
    if not there.is_dir():
        raise NotADirectoryError(f"expected a folder, got {there}")
    with tempfile.TemporaryDirectory(prefix=".", dir=there) as trial:
        (Path(trial) / folder.relative_to(there)).mkdir(parents=True, exist_ok=True)


def write_text(path: Path, content: str) -> None:
    """Put `content` at `path` as UTF-8, in one step."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:
    """Put `content` at `path` as JSON, in one step. NumPy scalars and arrays become numbers and lists.

    Raises:
        ValueError: for NaN and infinity, which JSON cannot hold: store `None` and say what it means.
        TypeError: for an object that is neither JSON nor an array.
    """
    write_text(path, as_json(content) + "\n")


def as_json(content: Any) -> str:
    """Return `content` as JSON text; raises as `write_json`."""
    return json.dumps(content, indent=1, default=_from_array, allow_nan=False)


def _from_array(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"expected JSON values or arrays, got {type(value).__name__}: {value!r}")
