"""The one rule for a path that a file names: it stays inside the folder of that file."""

from pathlib import Path


def inside(folder: Path, name: str) -> Path:
    """Return the path of `name` inside `folder`.

    Raises:
        ValueError: the name is absolute, or leads out of the folder by `..` or by a symbolic link.
    """
    try:
        found = (folder / name).resolve()  # follows symbolic links
        stays = not Path(name).is_absolute() and found.is_relative_to(folder.resolve())
    except (ValueError, OSError, RuntimeError) as error:  # a NUL in the name, or links in a circle
        raise ValueError(f"{name!r} is not a path inside {folder}: {error}") from None
    if not stays:
        raise ValueError(f"{name!r} leads out of {folder}: expected a path inside it")
    return found
