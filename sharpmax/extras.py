"""Optional dependencies: a missing one is reported in one line that says how to get it.

with extra("report"):
    import jinja2
"""

from collections.abc import Iterator
from contextlib import contextmanager


class MissingExtraError(ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import inside this block what `sharpmax[name]` brings.

    Raises:
        MissingExtraError: if one of the imports is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{error.name} is not installed; it comes with: pip install 'sharpmax[{name}]'", name=error.name
        ) from error
