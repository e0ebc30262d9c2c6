"""Attention for PyTorch: the call, and its implementations side by side."""

from sharpmax.extras import extra

with extra("torch"):
    import torch as _  # noqa: F401, said in one line when it is missing, before any module needs it

from sharpmax.torch.api import attention, row_stats, which_implementation
from sharpmax.torch.dispatch import IMPLEMENTATIONS
from sharpmax.torch.plan import Plan
from sharpmax.torch.varlen import attention_varlen
from sharpmax.torch.watching.clip import QKClip
from sharpmax.torch.watching.guard import (
    AttentionStoppedError,
    AttentionWarning,
    EntropyCollapseWarning,
    EntropyExplosionWarning,
    Guard,
    LogitGrowthWarning,
)
from sharpmax.torch.watching.slot import WatchedAttention
from sharpmax.torch.watching.watch import Watch, watch

__all__ = [
    "IMPLEMENTATIONS",
    "AttentionStoppedError",
    "AttentionWarning",
    "Choice",
    "EntropyCollapseWarning",
    "EntropyExplosionWarning",
    "Guard",
    "LogitGrowthWarning",
    "Plan",
    "QKClip",
    "Watch",
    "WatchedAttention",
    "attention",
    "attention_varlen",
    "row_stats",
    "watch",
    "which_implementation",
]

Choice = Plan  # the former name
