"""Text that a user names by its files."""

from collections.abc import Sequence
from pathlib import Path

from sharpmax.files.untrusted import read_bytes

MOST = 2**30  # bytes


def read_texts(files: Sequence[str | Path]) -> str:
    """Return the content of text files, one after the other.

    Raises:
        ValueError: one of them is not text, not a regular file, or larger than 1 GiB.
        OSError: one of them cannot be read.
    """
    contents = []
    for file in files:
        try:
            contents.append(read_bytes(file, expected="a text", most=MOST).decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not text in UTF-8: {error.reason} at byte {error.start}") from error
    return "\n".join(contents)
