"""Watch the attention of a training run, and clip or stop what blows up."""

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
    "AttentionStoppedError",
    "AttentionWarning",
    "EntropyCollapseWarning",
    "EntropyExplosionWarning",
    "Guard",
    "LogitGrowthWarning",
    "QKClip",
    "Watch",
    "WatchedAttention",
    "watch",
]
