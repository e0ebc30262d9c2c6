"""Modules that need not be installed, as stand-ins."""

import sys
from types import ModuleType


def install(monkeypatch, contents):
    """Put modules with these contents, by their names, where an import finds them."""
    for name, attributes in contents.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
