"""Normalisers: what turns a row of logits into weights, softmax and its alternatives. One idea a file.

A normaliser has no temperature: that is a policy's matter, and beta·logits goes in.

>>> import numpy as np
>>> row = np.array([2.0, 1.5, 0.0, -1.0])
>>> for normaliser in (Softmax(), Entmax(2.0), Hard()):
...     print(normaliser, normaliser(row).round(2))
Softmax() [0.56 0.34 0.08 0.03]
Entmax(alpha=2.0) [0.75 0.25 0.   0.  ]
Hard() [1. 0. 0. 0.]
"""

from sharpmax.core.normalisers.base import Normaliser
from sharpmax.core.normalisers.entmax import Entmax
from sharpmax.core.normalisers.exponential import OffByOne, Softmax
from sharpmax.core.normalisers.hard import Hard
from sharpmax.core.normalisers.itemwise import Relu, Sigmoid
from sharpmax.core.normalisers.proportional import Proportional
from sharpmax.core.normalisers.stick_breaking import StickBreaking
from sharpmax.core.normalisers.stieltjes import Stieltjes

__all__ = [
    "Entmax",
    "Hard",
    "Normaliser",
    "OffByOne",
    "Proportional",
    "Relu",
    "Sigmoid",
    "Softmax",
    "StickBreaking",
    "Stieltjes",
]
