"""Silence what transformers prints while loading, inside a block and nowhere else."""

import logging as python_logging
from collections.abc import Iterator
from contextlib import contextmanager

from sharpmax.extras import extra

with extra("hf"):
    from transformers.utils import logging


@contextmanager
def quiet() -> Iterator[None]:
    """Show no progress bars and no remarks below errors, the hub's included; all settings are as before afterwards."""
    hub = python_logging.getLogger("huggingface_hub")
    bars, level, hub_level = logging.is_progress_bar_enabled(), logging.get_verbosity(), hub.level
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    hub.setLevel(python_logging.ERROR)
    try:
        yield
    finally:
        hub.setLevel(hub_level)
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
