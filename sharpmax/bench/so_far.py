"""Keep what a benchmark has measured so far, so that a run that is stopped does not lose it.

with kept(write):          # `sharpmax bench --json`
    keep(figures)          # a benchmark, after every result
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Write = Callable[[dict[str, Any]], None]

_write: ContextVar[Write | None] = ContextVar("write", default=None)


@contextmanager
def kept(write: Write) -> Iterator[None]:
    """Hand every figure that is kept in this block to `write`."""
    token = _write.set(write)
    try:
        yield
    finally:
        _write.reset(token)


def keep(figures: dict[str, Any]) -> None:
    """Write the figures as they are now; outside `kept` do nothing."""
    if (write := _write.get()) is not None:
        write(figures)
