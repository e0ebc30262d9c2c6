"""A folder that is made once: in a temporary place first, then whole in one step, with its checksums."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from sharpmax.files import checksums


def kept(folder: Path, make: Callable[[Path], Path]) -> Path:
    """Return `folder`, made first if it is not there; all its files are as they were made.

    `make(place)` works in a temporary place beside it and returns what becomes `folder`: an interruption leaves nothing
    behind. Every later call reads all files again, half a second for 500 MB: a bit that flips on a disk changes neither
    a file's size nor its time.

    Raises:
        OSError: the cache cannot be written, or a file of the folder has changed.
    """
    if folder.is_dir():
        _require_as_made(folder)
        return folder
    _require_writable(folder.parent)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        made = make(Path(temporary))
        checksums.record(made)
        try:
            made.rename(folder)
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
