"""sharpmax: attention that stays sharp at any size.

Row statistics of attention logits, policies that choose each row's temperature from them, and what can be proved about
both; softmax and its alternatives. Works on NumPy, JAX and PyTorch arrays; imports neither framework.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from sharpmax.core.api import *
else:

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first asked for: the command line must start before NumPy has loaded."""
        if name not in __all__:
            raise AttributeError(f"module 'sharpmax' has no attribute {name!r}")
        globals()[name] = getattr(import_module("sharpmax.core.api"), name)
        return globals()[name]
