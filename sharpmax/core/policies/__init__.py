"""Policies: how each row's inverse temperature is chosen. One idea a file."""

from sharpmax.core.policies.base import Policy
from sharpmax.core.policies.beyond import Beyond
from sharpmax.core.policies.constant import Constant
from sharpmax.core.policies.entropy_target import EntropyTarget
from sharpmax.core.policies.grouped import Detached, PerHead, PerLayer, detach
from sharpmax.core.policies.length_scaled import LengthScaled
from sharpmax.core.policies.log_linear import LogLinear
from sharpmax.core.policies.polynomial import PAPER, Polynomial
from sharpmax.core.policies.table import Table

__all__ = [
    "PAPER",
    "Beyond",
    "Constant",
    "Detached",
    "EntropyTarget",
    "LengthScaled",
    "LogLinear",
    "PerHead",
    "PerLayer",
    "Policy",
    "Polynomial",
    "Table",
    "detach",
]
