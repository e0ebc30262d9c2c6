"""Match: hold each head's entropy at long lengths to what it had at a length the model handles. No labels.

    H(n) ≈ H(n0) + rate·log(n/n0),   dH/dlog beta = -Var_p(e) at beta = 1
    beta = max(1 + slope·log(n/n0), 1)   with slope = rate/Var    undoes the growth, to first order

It costs nothing to run: beta depends on the number of visible keys alone. Rows up to n0 stay as they are.
"""

from collections.abc import Sequence

import numpy as np

from sharpmax.core.policies import LengthScaled, PerLayer
from sharpmax.dispersion import fit_decay
from sharpmax.hf.calibration.variance import mean_variance
from sharpmax.hf.diagnosis.heads import diagnose_text
from sharpmax.hf.models.load import LoadedModel

STEEPEST = 0.25
"""A head whose logits hardly vary would need a huge slope, and has nothing to sharpen."""


def match(loaded: LoadedModel, text: str, lengths: Sequence[int], *, reference: int, rows: int = 32) -> PerLayer:
    """Fit one slope per head on a text, from its entropies at `lengths` (three or more), 1 up to `reference` keys."""
    found = diagnose_text(loaded, text, lengths, rows=rows)
    rate = fit_decay(found).rate
    variance = mean_variance(loaded, text, reference, rows=rows)
    slope = np.clip(np.nan_to_num(np.maximum(rate, 0.0) / np.maximum(variance, 1e-3)), 0.0, STEEPEST)
    return PerLayer(tuple(_scaled(row, reference) for row in slope))


def _scaled(slopes: np.ndarray, reference: int) -> LengthScaled:
    column = tuple((float(slope),) for slope in slopes)
    return LengthScaled(slope=column, offset=1.0, reference=float(reference), minimum=1.0)
