"""Attention for PyTorch: the call, and its implementations side by side."""

from sharpmax.torch.api import IMPLEMENTATIONS, Choice, attention, row_stats, which_implementation
from sharpmax.torch.varlen import attention_varlen

__all__ = ["IMPLEMENTATIONS", "Choice", "attention", "attention_varlen", "row_stats", "which_implementation"]
