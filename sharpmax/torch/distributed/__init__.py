"""Attention over a sequence that no process holds whole."""

from sharpmax.torch.distributed.attention import context_parallel_attention

__all__ = ["context_parallel_attention"]
