"""The import path that the docs name; the code stands in `drop_ins/`."""

from sharpmax.jax.drop_ins.equinox import Sharpened

__all__ = ["Sharpened"]
