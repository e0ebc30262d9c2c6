"""Mechanisms of the user's own, named MODULE:ATTRIBUTE: find them, and know their code again.

What a cell holds was computed by some code. So the sha256 of that code is part of the cell's name: of the file of the
module, and of the files that define the mechanism's class and its bases. What these import besides is not looked at.
"""

import hashlib
import sys
from importlib import import_module, reload
from pathlib import Path
from types import ModuleType
from typing import Any

from sharpmax.models.mechanisms import Mechanism

DIGITS = 10  # of the sha256 in a name
_loaded: dict[str, bytes] = {}
"""The source of each module as it was when we imported it."""


def is_outside(name: str) -> bool:
    """Tell whether a name is MODULE:ATTRIBUTE."""
    return ":" in name


def file_of(name: str) -> str:
    """Return the name of the module's file, or of the module where it has none."""
    module = sys.modules[name.partition(":")[0]]
    return Path(file).name if (file := module.__file__) else module.__name__


def found_at(name: str) -> Any:
    """Return the attribute of MODULE:ATTRIBUTE; a module whose file has changed since is loaded again.

    Raises:
        ValueError: there is none.
    """
    module, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # a module beside the command
    try:
        return getattr(_current(module), attribute)
    except (Exception, SystemExit) as error:  # whatever the module does when it is imported
        what = str(error) if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"expected a mechanism at {name}, got {what}") from error


def source_of(name: str, mechanism: Mechanism) -> str:
    """Return the first digits of the sha256 of the code of a mechanism that was found at `name`."""
    modules = [name.partition(":")[0], *(base.__module__ for base in type(mechanism).__mro__)]
    outside = [module for module in dict.fromkeys(modules) if not module.startswith(("builtins", "abc", "sharpmax."))]
    digest = hashlib.sha256()
    for module in outside or modules[:1]:
        source = _loaded.setdefault(module, _source(sys.modules[module]))  # of the code that is loaded
        digest.update(module.encode() + b"\0" + source + b"\0")
    return digest.hexdigest()[:DIGITS]


def _current(name: str) -> ModuleType:
    module = import_module(name)
    source = _source(module)
    if _loaded.setdefault(name, source) != source:
        module, _loaded[name] = reload(module), source
    return module


def _source(module: ModuleType) -> bytes:
    file = getattr(module, "__file__", None)
    return Path(file).read_bytes() if file and Path(file).exists() else b""
