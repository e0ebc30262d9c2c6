"""Attention over a sequence sharded on an axis of a device mesh."""

from sharpmax.jax.mesh.attention import bytes_moved, sharded_attention

__all__ = ["bytes_moved", "sharded_attention"]
