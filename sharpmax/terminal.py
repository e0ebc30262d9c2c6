"""What the command line prints: text that cannot command a terminal, and an end of the output that is no error.

Names of models, folders and cards come from strangers. Control characters in them could move the cursor, change the
title or reverse the order of letters, so every line is made printable on its way out.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

# C0 but for tab and newline, DEL and C1; marks that reorder a line; line separators; halves of a surrogate pair.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


_LACKING = {
    "memory": re.compile(r"allocate|out of memory|RESOURCE_EXHAUSTED", re.IGNORECASE),
    "room on the disk": re.compile(r"No space left on device|File too large|Disk quota exceeded"),
}


def lacking(error: BaseException) -> str | None:
    """Name what the machine has too little of, where an error says so; None for all others.

    By their words: each library has errors of its own for it, NumPy, PyTorch, JAX and safetensors.
    """
    if isinstance(error, MemoryError):
        return "memory"
    wordy = isinstance(error, RuntimeError | OSError) or type(error).__name__ == "SafetensorError"
    return next((what for what, words in _LACKING.items() if wordy and words.search(str(error))), None)


class OutputError(Exception):
    """The output cannot be written, as on a full disk. Not an OSError: argparse passes over those."""


class OutputClosedError(OutputError):
    """Nobody reads the output any more, as after `| head -1`."""


def printable(text: str) -> str:
    r"""Return the text with all that a terminal would obey written as an escape.

    >>> printable("gemma\x1b[2J\u202e")
    'gemma\\x1b[2J\\u202e'
    """
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


class PrintableStream:
    """A text stream that writes only printable text, and tells its own end from other errors."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text made printable; what the stream's encoding lacks becomes an escape too."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        plain = printable(text).encode(encoding, "backslashreplace").decode(encoding)
        with self._reporting():
            self._stream.write(plain)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        with self._reporting():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def rich_proxied_file(self) -> TextIO:
        """The stream for rich, whose colours and progress bars are escapes of our own."""
        return self._stream

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError as error:
            self._discard()
            raise OutputClosedError from error
        except OSError as error:  # a full disk
            self._discard()
            raise OutputError(f"cannot write the output: {error.strerror}") from error

    def _discard(self) -> None:
        """Send what is left to nowhere: Python flushes once more when it ends, and would complain."""
        with suppress(OSError, ValueError):  # ValueError: a stream without a descriptor
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextmanager
def printable_output() -> Iterator[None]:
    """Make all that is printed inside this block printable; the streams are as before afterwards.

    Raises:
        OutputClosedError: nobody reads the output any more.
        OutputError: the output cannot be written.
    """
    before = sys.stdout, sys.stderr
    if sys.stdout is None:  # it was closed before we began, and print would say nothing
        raise OutputError("standard output is closed; open it, or send it to a file or to /dev/null")
    sys.stdout, sys.stderr = (stream and PrintableStream(stream) for stream in before)
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        finally:
            sys.stdout, sys.stderr = before
