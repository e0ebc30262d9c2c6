"""The import path that the docs name; the code stands in `drop_ins/`."""

from sharpmax.jax.drop_ins.flax import attention_fn

__all__ = ["attention_fn"]
