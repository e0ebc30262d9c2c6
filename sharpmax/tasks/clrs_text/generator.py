"""The generator of `dm-clrs` itself, run without what that package declares and this part of it does not use.

`dm-clrs` asks for TensorFlow, two gigabytes, of which the generator uses one name in one `isinstance`. So the wheel is
fetched without its dependencies, its generator imported past the package's own `__init__` (which imports networks and
datasets), and an empty module stands in for TensorFlow while that happens. Afterwards neither is to be seen in
`sys.modules`: a program that imports the real packages gets the real ones.

That the text is what the real package with TensorFlow gives is recorded in `tests/tasks/clrs_text/hashes.json`.
"""

import importlib
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from sharpmax.extras import extra
from sharpmax.files.wheels import Wheel, cache_folder, unpacked

WHEEL = Wheel(
    "dm-clrs", "2.0.3", "7bde6019408780cbcafc064abf32a1f4d004f1b53fab9ac8069c07ea343e57af", "the generator of CLRS-Text"
)
LICENSE = "Apache-2.0"
PACKAGES = ("clrs", "clrs._src", "clrs._src.clrs_text")
"""Packages whose `__init__` is passed by; `clrs._src.algorithms` has one that is needed, and harmless."""


def source_folder() -> Path:
    """Return where the package's source is, or would be, kept."""
    return cache_folder() / "sources" / f"{WHEEL.package}-{WHEEL.version}-{WHEEL.sha256[:8]}"


@cache
def clrs_generator() -> Callable[..., Iterator[dict[str, Any]]]:
    """Return `clrs_generator` of dm-clrs, fetching the package first if that was never done.

    Raises:
        MissingExtraError: what the generator imports is not installed (`sharpmax[clrs]`).
        OSError: the package cannot be had, or is not the one expected.
    """
    with extra("clrs"):
        for name in ("absl.logging", "attr", "chex", "jax"):
            importlib.import_module(name)
    if not source_folder().is_dir():
        print(f"fetching {WHEEL.package} {WHEEL.version}: {WHEEL.holds}; licence: {LICENSE}", file=sys.stderr)
    folder = unpacked(WHEEL, source_folder(), _keep_source)
    with _stand_ins(folder):
        module = importlib.import_module("clrs._src.clrs_text.huggingface_generators")
        found: Callable[..., Iterator[dict[str, Any]]] = module.clrs_generator
    return found


def _keep_source(source: Path, target: Path) -> None:
    shutil.copytree(source / "clrs", target / "clrs")


@contextmanager
def _stand_ins(folder: Path) -> Iterator[None]:
    """Inside this block `clrs` is the fetched source and `tensorflow` an empty module; as before afterwards."""

    def ours(name: str) -> bool:
        return name.split(".")[0] in ("clrs", "tensorflow")

    before = {name: sys.modules.pop(name) for name in list(sys.modules) if ours(name)}
    for name in PACKAGES:
        package = ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = package
    tensorflow = ModuleType("tensorflow")
    tensorflow.Tensor = type("Tensor", (), {})  # type: ignore[attr-defined] # of which nothing is an instance
    sys.modules["tensorflow"] = tensorflow
    try:
        yield
    finally:
        for name in [name for name in sys.modules if ours(name)]:
            del sys.modules[name]
        sys.modules.update(before)
