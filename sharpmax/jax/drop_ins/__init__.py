"""Sharpened attention and softmax for Flax, Equinox and `jax.nn`."""
