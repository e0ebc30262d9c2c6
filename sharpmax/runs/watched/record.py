"""The record of a watched run: one file of JSON lines, appended as the run goes on.

    {"watched": 1, "layers": ["model.layers.0.self_attn", …], "heads": [9, …], "every": 10}
    {"step": 0, "loss": 10.8, "maximum": [[3.1, …], …], "entropy": …}

The first line says what is watched, each further one is a reading. A layer that has not run yet has 0 heads; when it
runs, the first line is written anew, and readings before have no figure of it. A run that was killed and continues from
an earlier step drops the lines from that step on, and half a line at the end: the record stays one. A disk that is
full, or a folder that cannot be written, ends the record with one warning. The training goes on.
"""

import errno
import json
import os
import warnings
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Any

from sharpmax.core.checks import is_count, is_number
from sharpmax.files import atomic
from sharpmax.files.untrusted import read_bytes, unique

RECORD_FILE = "watch.jsonl"
LARGEST = 2**30  # bytes of a record that are read
LAST_STEP = 2**53  # steps end before it
FIGURES = ("maximum", "entropy", "relative_entropy", "scaled")  # what the page is drawn of
MOST_HEADS = 2**20  # of all layers; a record is a file that a stranger may have made


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
        about, *steps = [json.loads(line, object_pairs_hook=unique) for line in lines] or [{}]
        if type(about["watched"]) is not int or about["watched"] != 1:
            raise ValueError("it is of another version")
        _must_name_heads(about)
        if any(type(step["step"]) is not int for step in steps):
            raise ValueError("a step is no whole number")
        if any(not a < b for a, b in pairwise([-1, *(step["step"] for step in steps), LAST_STEP])):
            raise ValueError("its steps do not rise")
        heads = about["heads"]
        places = {(layer, head) for layer, count in enumerate(heads) for head in range(count)}
        if steps and not places:
            raise ValueError("it has readings of no head")
        for step in steps:
            _must_be_of(step, heads, places)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} is not the record of a watched run ({error!r}); delete it to begin anew") from error
    return Recorded(about, steps)


def _must_name_heads(about: Mapping[str, Any]) -> None:
    """Raise ValueError unless the first line names every layer and says how many heads it has."""
    layers, heads = about["layers"], about["heads"]
    if not isinstance(layers, list) or not isinstance(heads, list) or len(layers) != len(heads):
        raise ValueError("layers and heads do not fit together")
    if not all(isinstance(name, str) for name in layers) or not all(is_count(count) for count in heads):
        raise ValueError("layers are names, and heads are numbers of them")
    if sum(heads) > MOST_HEADS:
        raise ValueError(f"it has more than {MOST_HEADS:,} heads")


def _must_be_of(step: Mapping[str, Any], heads: Sequence[int], places: Set[tuple[int, int]]) -> None:
    """Raise ValueError for a reading of other heads than the record's: a figure would be told of another head."""
    if not _is_figure(step.get("loss")):
        raise ValueError(f"the loss of step {step['step']} is no finite number")
    for name, figure in step.items():
        if name == "warned":
            for one in figure:
                if (one["layer"], one["head"]) not in places or not is_number(one["value"]):
                    raise ValueError(f"what step {step['step']} warns of is no head's")
                if not isinstance(one["kind"], str):
                    raise ValueError(f"what step {step['step']} warns of has no name")
        elif isinstance(figure, list) or name in FIGURES:
            counts = [len(layer) for layer in figure]
            fits = len(counts) == len(heads) and all(n in (0, count) for n, count in zip(counts, heads, strict=True))
            if not fits:
                raise ValueError(f"{name} of step {step['step']} is not of these heads")
            if not all(_is_figure(value) for layer in figure for value in layer):
                raise ValueError(f"{name} of step {step['step']} holds what is no finite number")


def _is_figure(value: Any) -> bool:
    """Tell whether a record may hold it as a figure: a finite number, or null for none."""
    return value is None or is_number(value)


class Record:
    """The record as a run writes it. It opens with the first reading, when the heads are known."""

    def __init__(self, place: str | Path, *, step: int | None = None) -> None:
        """Prepare the record at `place`, to continue at `step`; None: after the last step that it holds."""
        self.file = record_file(place)
        self._step = step
        self._open: FileIO | None = None
        self._about: dict[str, Any] | None = None
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
            if self._about != about:
                self.close()
                self._open = self._continued(about, step["step"])
                self._about = dict(about)
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

    def _continued(self, about: Mapping[str, Any], at: int) -> FileIO:
        """Open the file to append, with what it held before the step to continue at; `at` once it was begun."""
        heads = list(about["heads"])
        kept: Sequence[Mapping[str, Any]] = []
        if self.file.exists():
            old = read_record(self.file)
            kept = [step for step in old.steps if step["step"] < (self.next_step() if self._about is None else at)]
            if kept and not _are_of_one_model(old.about, about):
                raise ValueError(f"{self.file} is the record of another model; choose another file, or delete it")
            heads = [max(both) for both in zip(heads, old.about["heads"], strict=True)] if kept else heads
        first = {"watched": 1, **about, "heads": heads}
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


def _are_of_one_model(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two first lines can be of one model: a layer that has not run in one of them has 0 heads there."""
    same = len(one["heads"]) == len(other["heads"]) and list(one["layers"]) == list(other["layers"])
    return same and all(0 in (a, b) or a == b for a, b in zip(one["heads"], other["heads"], strict=True))


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode() + b"\n"
