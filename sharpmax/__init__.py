"""sharpmax: attention that stays sharp at any size.

Row statistics of attention logits, policies that choose each row's temperature from them, and what can be proved about
both; softmax and its alternatives. Works on NumPy, JAX and PyTorch arrays; imports neither framework.
"""

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
