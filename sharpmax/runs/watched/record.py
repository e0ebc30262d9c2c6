"""The record of a watched run: one file of JSON lines, appended as the run goes on.

    {"watched": 1, "layers": ["model.layers.0.self_attn", …], "heads": [9, …], "every": 10}
    {"step": 0, "loss": 10.8, "maximum": [[3.1, …], …], "entropy": …}

The first line says what is watched, each further one is a reading. A run that was killed and continues from an earlier
step drops the lines from that step on, and half a line at the end: the record stays one. A disk that is full, or a
folder that cannot be written, ends the record with one warning. The training goes on.
"""

import errno
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Any

from sharpmax.files import atomic
from sharpmax.files.untrusted import read_bytes

RECORD_FILE = "watch.jsonl"
LARGEST = 2**30  # bytes of a record that are read


class RecordStoppedWarning(UserWarning):
    """The record of a run could not be written and has ended; the training goes on."""


@dataclass(frozen=True)
class Recorded:
    """What a record holds: its first line, and the readings in the order of their steps."""

    about: dict[str, Any]
    steps: list[dict[str, Any]]


def record_file(place: str | Path) -> Path:
    """Return the file of a record: itself, or the one in a folder."""
    path = Path(place)
    return path if path.suffix == ".jsonl" else path / RECORD_FILE


def read_record(place: str | Path) -> Recorded:
    """Read a record: its file, or the folder that holds it. Half a line at the end is left out: it is being written.

    Raises:
        ValueError: a file that is not a record; the message names it.
        OSError: one that cannot be read.
    """
    file = record_file(place)
    lines = read_bytes(file, expected="the record of a watched run", most=LARGEST).split(b"\n")[:-1]
    try:
        content = [json.loads(line) for line in lines]
        about, *steps = content
        if about["watched"] != 1 or not all(isinstance(step["step"], int) for step in steps):
            raise ValueError("it is of another version")
        numbers = [step["step"] for step in steps]
        if any(not a < b for a, b in pairwise([-1, *numbers, 2**53])):
            raise ValueError("its steps do not rise")
        if len(about["layers"]) != len(about["heads"]):
            raise ValueError("layers and heads do not fit together")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is not the record of a watched run ({error!r}); delete it to begin anew") from error
    return Recorded(about, steps)


class Record:
    """The record as a run writes it. It opens with the first reading, when the heads are known."""

    def __init__(self, place: str | Path, *, step: int | None = None) -> None:
        """Prepare the record at `place`, to continue at `step`; None: after the last step that it holds."""
        self.file = record_file(place)
        self._step = step
        self._open: FileIO | None = None
        self.stopped = False

    def next_step(self) -> int:
        """Return the step to continue at: the one given, or the one after the last that the file holds."""
        if self._step is None:
            steps = self._held()
            self._step = steps[-1]["step"] + 1 if steps else 0
        return self._step

    def _held(self) -> list[dict[str, Any]]:
        """Return the steps that the file holds; one that cannot be read ends the record."""
        try:
            return read_record(self.file).steps if self.file.exists() else []
        except OSError as error:
            self._stop(error, 0)
            return []

    def append(self, about: Mapping[str, Any], step: Mapping[str, Any]) -> None:
        """Write a line and hand it to the system; what cannot be written ends the record with one warning."""
        if self.stopped:
            return
        try:
            if self._open is None:
                self._open = self._continued(about)
            self._write(_line(step))
        except OSError as error:
            self._stop(error, step["step"])

    def _stop(self, error: OSError, step: int) -> None:
        self.stopped = True
        self.close()
        warnings.warn(
            f"the record {self.file} ends before step {step}: {error.strerror or error}; the training goes on",
            RecordStoppedWarning,
            stacklevel=3,
        )

    def close(self) -> None:
        """Close the file."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _continued(self, about: Mapping[str, Any]) -> FileIO:
        """Open the file to append, with what it held before the step to continue at."""
        first = {"watched": 1, **about}
        kept: Sequence[Mapping[str, Any]] = []
        if self.file.exists():
            old = read_record(self.file)
            kept = [step for step in old.steps if step["step"] < self.next_step()]
            if kept and (old.about["layers"], old.about["heads"]) != (about["layers"], about["heads"]):
                raise ValueError(f"{self.file} is the record of another model; choose another file, or delete it")
        atomic.write_bytes(self.file, b"".join(_line(line) for line in (first, *kept)))
        return self.file.open("ab", buffering=0)  # nothing waits in memory for a disk that is full

    def _write(self, line: bytes) -> None:
        """Write the whole line, or none of it."""
        assert self._open is not None
        before = os.fstat(self._open.fileno()).st_size
        try:
            if self._open.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.file))
        except OSError:
            with suppress(OSError):  # which would hide the first one
                os.ftruncate(self._open.fileno(), before)
            raise


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode() + b"\n"
