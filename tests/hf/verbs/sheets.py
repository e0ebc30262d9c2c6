"""A model's results on an exam, made up."""

from sharpmax.hf.calibration.answers import Answered
from sharpmax.hf.calibration.judge import Sheet


def right_if(exact, text=(1.0, 1.0, 1.0)):
    return Sheet({("letters", 1): [Answered(1.0, exact)] * 40}, {("text", 32): list(text)}, 1.0)
