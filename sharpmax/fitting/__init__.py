"""Fit a policy to rows of logits whose correct item is known, and judge it on rows that no fit saw.

rows = [(logits, correct), …]                    # arrays (rows, n) and (rows,), one pair a size if sizes differ
result = calibrate(rows)                         # the paper's procedure: degree 4 in the entropy, guarded
result.save("card.json", model="my head")        # a policy card, with what it was worth on held-out rows
"""

from sharpmax.fitting.best_temperature import CRITERIA, BestTemperatures, best_inverse_temperatures
from sharpmax.fitting.procedure import FORMS, Calibration, calibrate
from sharpmax.fitting.regression import NothingToFitError, fit_polynomial, fit_table

__all__ = [
    "CRITERIA",
    "FORMS",
    "BestTemperatures",
    "Calibration",
    "NothingToFitError",
    "best_inverse_temperatures",
    "calibrate",
    "fit_polynomial",
    "fit_table",
]
