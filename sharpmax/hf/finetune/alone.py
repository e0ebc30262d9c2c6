"""One process at a time in a folder: a second that trains there would remove what the first is writing.

The lock is the operating system's, so a process that is killed leaves none behind.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ModuleNotFoundError:  # Windows has none: there it is up to the user
    fcntl = None  # type: ignore[assignment]


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder, made if it is missing, for as long as the block runs.

    Raises:
        ValueError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(
                    f"another process trains in {folder}; wait for it to end, or choose another folder"
                ) from error
        yield
