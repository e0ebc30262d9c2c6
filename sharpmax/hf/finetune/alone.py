"""Let one process at a time train in a folder: a second one would remove what the first is writing.

The lock is the operating system's, so a process that is killed leaves none behind.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sharpmax.extras import extra

with extra("hf"):
    from filelock import FileLock, Timeout


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder, made if it is missing, for as long as the block runs.

    Raises:
        ValueError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise ValueError(f"another process trains in {folder}; wait for it to end, or choose another folder") from error
    try:
        yield
    finally:
        lock.release()
