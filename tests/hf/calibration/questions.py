"""The questions, the text and the exam that the tests of calibration ask of a tiny model."""

import torch

from sharpmax.hf.calibration.judge import Exam
from tests.hf.tiny import Characters

QUESTIONS = [("abcabcab", "c"), ("xyxyxyx", "yx"), ("hello", " there")]
TEXT = "Attention that stays sharp at any size, whatever the length of the text it reads. " * 4


def exam(size=1, windows=(32,)):
    return Exam(
        {"letters": {size: QUESTIONS}}, {"text": torch.tensor([Characters()(TEXT).input_ids])}, windows, together=64
    )
