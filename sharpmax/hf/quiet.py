"""Silence what transformers prints while loading, inside a block and nowhere else."""

from collections.abc import Iterator
from contextlib import contextmanager

from sharpmax.extras import extra

with extra("hf"):
    from transformers.utils import logging


@contextmanager
def quiet() -> Iterator[None]:
    """Show no progress bars and no remarks below errors; both settings are as before afterwards."""
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
