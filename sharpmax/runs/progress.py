"""Tell how a long run goes, on standard error: bars in a terminal, a line every few seconds anywhere else.

    with shown():                               # the command line, and the verbs of `sharpmax.hf`
        with stage("fit", total=108) as advance:
            for step in range(108):
                advance(note=f"loss {loss:.3g}")

Whatever works for long opens a stage. Outside `shown` a stage says nothing, and costs nothing.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from sharpmax.terminal import printable

LONG = 15 * 60  # seconds of work from which on advice is given how to shorten it
SILENT = 3.0  # seconds without a line after which the next one comes, where there is no terminal
EARLY = 0.01  # share of the work below which no time left is told: starting up is most of what was timed
_AVERAGED = 3600.0  # seconds over which the speed of a bar is averaged


class Advance(Protocol):
    """What a stage hands out: call it when some of the work is done."""

    def __call__(self, by: float = 1, *, note: str = "", total: float | None = None) -> None:
        """Move the bar; a note stands beside it, and a new total replaces the old one."""


class _Shown:
    """One set of bars, and where there is no terminal the thread that writes lines instead."""

    def __init__(self, quiet: bool) -> None:
        console = _console()
        self.quiet, self.live = quiet, console.is_terminal and not quiet
        self.bars = _bars(console, disable=not self.live)
        self.said = time.monotonic()
        self.first: list[str] = []
        self._open = 0
        self._ended = threading.Event()
        self._writer = threading.Thread(target=self._write_lines, daemon=True)

    def __enter__(self) -> "_Shown":
        if not (self.live or self.quiet):
            self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._writer.is_alive():
            self._writer.join()

    def say(self, line: str) -> None:
        """Write a line above the bars, after those that wait for the work to begin."""
        waiting, self.first = self.first, []
        if not self.quiet:
            for each in (*waiting, line):
                if self.live:
                    self.bars.console.print(printable(each), markup=False, highlight=False, soft_wrap=True)
                else:
                    print(each, file=sys.stderr, flush=True)
            self.said = time.monotonic()

    @contextmanager
    def working(self, begins: bool = True) -> Iterator[Progress]:
        """Show the bars in this block, after what waits for the work to begin; outside, a terminal is left alone."""
        if self.first and begins:
            self.say(self.first.pop())
        self._open += 1
        self.bars.start()
        try:
            yield self.bars
        finally:
            self._open -= 1
            if not self._open:
                self.bars.stop()

    def _write_lines(self) -> None:
        while not self._ended.wait(0.25):
            if time.monotonic() - self.said >= SILENT:
                tasks = list(self.bars.tasks)
                under_way = [task for task in tasks if not task.finished] or tasks[-1:]
                self.say(" · ".join(map(_in_words, under_way)) or "working")


_current: _Shown | None = None


@contextmanager
def shown(*, quiet: bool = False) -> Iterator[None]:
    """Show the stages of this block; inside another such block, that one shows them."""
    global _current
    if _current is not None:
        yield
        return
    try:
        with _Shown(quiet) as _current:
            yield
    finally:
        _current = None


@contextmanager
def stage(name: str, total: float | None = None, *, begins: bool = True) -> Iterator[Advance]:
    """Open a stage of the work that has `total` parts, or nobody knows how many.

    One that does not begin the work leaves the lines of `say_first` waiting: the work may still be refused.
    """
    if _current is None:
        yield lambda by=1, *, note="", total=None: None
        return
    with _current.working(begins) as bars:
        task = bars.add_task(printable(name), total=total, note="")

        def advance(by: float = 1, *, note: str = "", total: float | None = None) -> None:
            bars.update(task, advance=by, note=printable(note), total=total)  # None leaves the total as it is

        try:
            yield advance
        finally:
            bars.remove_task(task)


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Yield bars with a note, the time taken and the time left; what was added is gone afterwards."""
    if _current is None:
        with _bars(_console()) as bars:
            yield bars
        return
    with _current.working() as bars:
        before = set(bars.task_ids)
        try:
            yield bars
        finally:
            for task in set(bars.task_ids) - before:
                bars.remove_task(task)


def is_shown() -> bool:
    """Tell whether progress is shown to anyone."""
    return _current is not None and not _current.quiet


def say(line: str) -> None:
    """Tell a line of progress on standard error, where it is shown."""
    if _current is not None:
        _current.say(line)


def say_first(line: str) -> None:
    """Tell a line once the work begins: what is refused before says nothing else."""
    if _current is not None:
        _current.first.append(line)


def say_estimate(seconds: float, device: str = "cpu", advice: str = "") -> None:
    """Tell how long the work will take, about; of long work also the advice, and on a CPU that a GPU is advised."""
    is_long = seconds > LONG
    gpu = "; a GPU is advised" if device == "cpu" and is_long else ""
    where = "this CPU" if device == "cpu" else device
    say(f"this takes about {duration(seconds)} on {where}{gpu}{f' ({advice})' if advice and is_long else ''}")


def report_as(name: str) -> Callable[[str], None]:
    """Return what prints a line of progress under a name, on standard error."""

    def report(line: str) -> None:
        if _current is not None:
            _current.say(f"{name}: {line}")
        else:
            print(f"{name}: {line}", file=sys.stderr, flush=True)

    return report


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> duration(8.2), duration(200), duration(8000)
    ('8 s', '3 min', '2 h 13 min')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _console() -> Console:
    """Return standard error as rich writes to it: its colours are our own, so not through what escapes a stranger's."""
    return Console(file=getattr(sys.stderr, "rich_proxied_file", sys.stderr))


def _bars(console: Console, **options: Any) -> Progress:
    texts = [TextColumn(form, markup=False) for form in ("{task.description}", "{task.fields[note]}")]
    columns = (texts[0], BarColumn(), MofNCompleteColumn(), texts[1])
    # What is printed keeps its own way: a result must not be led to standard error, nor pass by what makes it safe.
    kept = {"redirect_stdout": False, "redirect_stderr": False}
    options = {"transient": True, "speed_estimate_period": _AVERAGED, **kept, **options}
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, **options)


def _in_words(task: Task) -> str:
    """Return the state of a bar as a line says it."""
    counted = f" {task.completed:,.0f} of {task.total:,.0f}" if task.total else ""
    elapsed, left = task.elapsed or 0.0, ""
    if task.total and task.completed >= EARLY * task.total > 0:
        left = f", about {duration(elapsed * (task.total / task.completed - 1))} left"
    note = f", {task.fields['note']}" if task.fields.get("note") else ""
    return f"{task.description}{counted}{note}, {duration(elapsed)}{left}"
