"""A model's `config.json` from a stranger: bounded before transformers reads it, and its errors in one line."""

import math
import re
from pathlib import Path

from sharpmax.extras import extra
from sharpmax.files.untrusted import read_json

with extra("hf"):
    from safetensors import SafetensorError

MOST = {r"layers?$": 10_000, r"experts$": 10_000, r"^num_labels$": 1_000_000}
"""Whole numbers that transformers counts up to while it builds a model, before it looks at the weights."""


def require_bounded_config(folder: Path) -> None:
    """Raise ValueError if the config of a local folder is not JSON of a sensible size, holds a NaN, or would be built
    for ever.

    A folder without one is left to transformers, which says so.
    """
    file = folder / "config.json"
    if not file.exists():
        return
    config = read_json(file, expected="a model's config", strict=False)  # some hold Infinity, as Mamba's
    if not isinstance(config, dict):
        raise ValueError(f"{file} is not a model's config: expected an object, got {type(config).__name__}")
    parts = [config, *(value for value in config.values() if isinstance(value, dict))]  # text_config and the like
    for name, number in ((name, number) for part in parts for name, number in part.items()):
        if isinstance(number, float) and math.isnan(number):
            raise ValueError(f"{file} has {name} of NaN: nothing can be computed with it; put the number back")
        for pattern, most in MOST.items():
            if re.search(pattern, name) and isinstance(number, int | float) and number > most:
                raise ValueError(f"{file} has {name} of {number:.3g}, more than the {most:,} that are built")


def require_own_files(folder: Path) -> None:
    """Raise ValueError if an index of weights names a file outside its folder, which transformers would read.

    A link is the folder's own: the hub's cache is made of links.
    """
    for index in sorted(folder.glob("*.index.json")):
        named = read_json(index, expected="an index of weights", strict=False)
        files = named.get("weight_map") if isinstance(named, dict) else None
        for file in files.values() if isinstance(files, dict) else ():
            if not isinstance(file, str) or Path(file).is_absolute() or ".." in Path(file).parts:
                raise ValueError(f"{index} names {file!r}, expected a file inside {folder}")


def reason_of(error: Exception) -> str:
    """Return what an error of transformers says, in one line; where the text alone says little, with its kind."""
    said = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason given"]
    first = " ".join(said[:2]) if said[0].endswith(":") else said[0]  # the second has the reason then
    if isinstance(error, OSError | ValueError | RuntimeError | ImportError | SafetensorError):
        return first
    return f"transformers cannot use its config.json ({type(error).__name__}: {first})"
