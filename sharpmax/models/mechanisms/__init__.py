"""Mechanisms: what an attention layer does with its queries and keys. One idea a file."""

from sharpmax.models.mechanisms.base import Learned, Mechanism, scaled
from sharpmax.models.mechanisms.crowded import Crowded
from sharpmax.models.mechanisms.differential import Differential
from sharpmax.models.mechanisms.entmax import AdaptiveEntmax, Entmax
from sharpmax.models.mechanisms.few import Hierarchical, TopK
from sharpmax.models.mechanisms.linear import Linear
from sharpmax.models.mechanisms.normalised import Normalised
from sharpmax.models.mechanisms.policies import LearnedLogLinear, LearnedSSMax, Sharpened
from sharpmax.models.mechanisms.selective import Selective

__all__ = [
    "AdaptiveEntmax",
    "Crowded",
    "Differential",
    "Entmax",
    "Hierarchical",
    "Learned",
    "LearnedLogLinear",
    "LearnedSSMax",
    "Linear",
    "Mechanism",
    "Normalised",
    "Selective",
    "Sharpened",
    "TopK",
    "scaled",
]
