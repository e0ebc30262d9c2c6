"""Hugging Face models: load one, sharpen it, and bind diagnosis, certificates and calibration to it."""

from sharpmax.builtin import BUILTIN, Builtin
from sharpmax.hf.harness import harness_model
from sharpmax.hf.layers import AttentionLayer, attention_layers
from sharpmax.hf.length_temperature import SecondTemperatureWarning
from sharpmax.hf.load import LoadedModel, load
from sharpmax.hf.plain import Attention
from sharpmax.hf.sharpen import Sharpened, sharpen, unsharpen
from sharpmax.hf.sidecar import OtherModelWarning, from_card, save_pretrained
from sharpmax.hf.training import AttentionLog

__all__ = [
    "BUILTIN",
    "Attention",
    "AttentionLayer",
    "AttentionLog",
    "Builtin",
    "LoadedModel",
    "OtherModelWarning",
    "SecondTemperatureWarning",
    "Sharpened",
    "attention_layers",
    "from_card",
    "harness_model",
    "load",
    "save_pretrained",
    "sharpen",
    "unsharpen",
]
