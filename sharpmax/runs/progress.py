"""Progress of a long run, told on standard error."""

import sys
from collections.abc import Callable


def report_as(name: str) -> Callable[[str], None]:
    """Return what prints a line of progress under a name, on standard error."""
    return lambda line: print(f"{name}: {line}", file=sys.stderr, flush=True)
