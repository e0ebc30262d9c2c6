"""Hugging Face models: load one, sharpen it, and bind diagnosis, certificates and calibration to it."""

from sharpmax.hf.builtin import BUILTIN, Builtin
from sharpmax.hf.load import LoadedModel, load

__all__ = ["BUILTIN", "Builtin", "LoadedModel", "load"]
