"""Hugging Face models: load one, sharpen it, diagnose, certify and calibrate it."""

from sharpmax.extras import extra

with extra("hf"):
    import torch as _torch  # noqa: F401, said in one line when it is missing, before any module needs it
    import transformers as _transformers  # noqa: F401

from sharpmax.builtin import BUILTIN, Builtin
from sharpmax.hf.diagnosis.training_log import AttentionLog
from sharpmax.hf.models.harness import harness_model
from sharpmax.hf.models.load import LoadedModel, load
from sharpmax.hf.sharpen.layers import AttentionLayer, attention_layers
from sharpmax.hf.sharpen.length_temperature import SecondTemperatureWarning
from sharpmax.hf.sharpen.modules import Attention
from sharpmax.hf.sharpen.sidecar import OtherModelWarning, from_card, save_pretrained
from sharpmax.hf.sharpen.switch import Sharpened, sharpen, unsharpen
from sharpmax.hf.verbs.calibrate import calibrate
from sharpmax.hf.verbs.certify import certify
from sharpmax.hf.verbs.diagnose import diagnose
from sharpmax.hf.verbs.doctor import doctor
from sharpmax.hf.verbs.evaluate import evaluate
from sharpmax.hf.watching.callback import AttentionWatch

__all__ = [
    "BUILTIN",
    "Attention",
    "AttentionLayer",
    "AttentionLog",
    "AttentionWatch",
    "Builtin",
    "LoadedModel",
    "OtherModelWarning",
    "SecondTemperatureWarning",
    "Sharpened",
    "attention_layers",
    "calibrate",
    "certify",
    "diagnose",
    "doctor",
    "evaluate",
    "from_card",
    "harness_model",
    "load",
    "save_pretrained",
    "sharpen",
    "unsharpen",
]
