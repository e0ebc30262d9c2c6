"""A loaded model with its context extended for as long as a block lasts: what calibration and judging work on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from sharpmax.core.extension import Extension
from sharpmax.core.policies import Constant
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.sharpen.switch import sharpen


@contextmanager
def extended(loaded: LoadedModel, extension: Extension | None) -> Iterator[LoadedModel]:
    """Give the model with the extension switched on; its `context` is then the extended one.

    A policy that is switched on inside keeps the extension. With None, nothing changes.

    >>> with extended(loaded, Yarn(4.0, loaded.context)) as longer:  # doctest: +SKIP
    ...     longer.context
    32768
    """
    if extension is None:
        yield loaded
        return
    with sharpen(loaded.model, Constant(1.0), extension=extension):
        yield replace(loaded, extended_context=extension.context)
