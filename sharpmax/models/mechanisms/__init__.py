"""Mechanisms: what an attention layer does with its queries and keys. One idea a file."""

from sharpmax.models.mechanisms.base import Learned, Mechanism
from sharpmax.models.mechanisms.policies import LearnedLogLinear, LearnedSSMax, Sharpened

__all__ = ["Learned", "LearnedLogLinear", "LearnedSSMax", "Mechanism", "Sharpened"]
