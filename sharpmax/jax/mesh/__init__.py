"""Attention over a sequence sharded on an axis of a device mesh."""
