"""sharpmax: attention that stays sharp as inputs grow.

Row statistics of attention logits, policies that choose each row's temperature from them, and what can be proved about
both; softmax and its alternatives. Works on NumPy, JAX and PyTorch arrays; imports neither framework.
`sharpmax.torch`, `sharpmax.jax` and `sharpmax.hf` are imported when they are first used.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "PAPER",
    "Beyond",
    "Card",
    "Constant",
    "DynamicNTK",
    "EntropyTarget",
    "LengthScaled",
    "LogLinear",
    "PerHead",
    "PerLayer",
    "Policy",
    "Polynomial",
    "RowStats",
    "SelfExtend",
    "SilentPolicyWarning",
    "StreamState",
    "Table",
    "Unscaled",
    "Yarn",
    "bounds",
    "detach",
    "entropy",
    "laws",
    "load_card",
    "load_policy",
    "normalisers",
    "reference_attention",
    "row_stats",
    "softmax",
]

_ON_FIRST_USE = {"hf": ("torch", "transformers"), "jax": ("jax",), "torch": ("torch",)}
"""Packages of the frameworks, and what each needs."""

if TYPE_CHECKING:
    from sharpmax.core.api import *
else:

    def __getattr__(name: str) -> Any:
        """Import a name when it is first used: the command line starts before NumPy, and NumPy before a framework."""
        if name in _ON_FIRST_USE:
            return import_module(f"sharpmax.{name}")
        if name not in __all__:
            raise AttributeError(f"module 'sharpmax' has no attribute {name!r}")
        globals()[name] = getattr(import_module("sharpmax.core.api"), name)
        return globals()[name]


def __dir__() -> list[str]:
    """List the public names, and the framework packages whose frameworks are installed, imported or not.

    `help` and `inspect` look up every name that is listed, and end where one of them cannot be imported.
    """
    there = {package for package, needs in _ON_FIRST_USE.items() if all(map(find_spec, needs))}
    return sorted({*globals(), *__all__, *there})
