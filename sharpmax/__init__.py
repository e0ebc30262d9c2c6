"""sharpmax: attention that stays sharp at any size.

Row statistics of attention logits, policies that choose each row's temperature from them, and what can be proved about
both; softmax and its alternatives. Works on NumPy, JAX and PyTorch arrays; imports neither framework.
`sharpmax.torch`, `sharpmax.jax` and `sharpmax.hf` are imported when they are first used.
"""

from importlib import import_module
from types import ModuleType

from sharpmax.core import bounds, normalisers
from sharpmax.core.attention import reference_attention
from sharpmax.core.cards import Card, load_card, load_policy
from sharpmax.core.policies import (
    PAPER,
    Constant,
    EntropyTarget,
    LengthScaled,
    LogLinear,
    PerHead,
    PerLayer,
    Policy,
    Polynomial,
    Table,
    detach,
)
from sharpmax.core.softmax import SilentPolicyWarning, entropy, softmax
from sharpmax.core.stats import RowStats, StreamState, row_stats

__version__ = "0.1.0"

__all__ = [
    "PAPER",
    "Card",
    "Constant",
    "EntropyTarget",
    "LengthScaled",
    "LogLinear",
    "PerHead",
    "PerLayer",
    "Policy",
    "Polynomial",
    "RowStats",
    "SilentPolicyWarning",
    "StreamState",
    "Table",
    "bounds",
    "detach",
    "entropy",
    "load_card",
    "load_policy",
    "normalisers",
    "reference_attention",
    "row_stats",
    "softmax",
]

_ON_FIRST_USE = ("hf", "jax", "torch")


def __getattr__(name: str) -> ModuleType:
    """Import a framework's package when it is first used."""
    if name in _ON_FIRST_USE:
        return import_module(f"sharpmax.{name}")
    raise AttributeError(f"module 'sharpmax' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the framework packages too, imported or not."""
    return sorted({*globals(), *_ON_FIRST_USE})
