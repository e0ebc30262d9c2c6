"""The public names of `sharpmax`, gathered; the package imports them from here when one is first asked for."""

from sharpmax.core import bounds, normalisers
from sharpmax.core.attention import reference_attention
from sharpmax.core.cards import Card, load_card, load_policy
from sharpmax.core.policies import (
    PAPER,
    Beyond,
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

__all__ = [
    "PAPER",
    "Beyond",
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
