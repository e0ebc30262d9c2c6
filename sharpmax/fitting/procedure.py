"""The whole procedure: best temperature of each row, regression on its entropy, judgement on rows held out.

beta*(row) by a stated criterion  ->  beta(H), a `Polynomial` or a `Table`  ->  held-out coefficient of the correct item
"""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from sharpmax.core.checks import is_count, is_number, short
from sharpmax.core.policies import Constant, Policy
from sharpmax.core.softmax import sharpened_rows
from sharpmax.fitting.best_temperature import (
    BestTemperatures,
    best_inverse_temperatures,
    checked_bounds,
    checked_rows,
)
from sharpmax.fitting.regression import NothingToFitError, check_degree, check_knots, fit_polynomial, fit_table

FORMS = ("polynomial", "table")


@dataclass(frozen=True)
class Calibration:
    """A fitted policy, what it was fitted to, and what it is worth.

    Attributes:
        policy: the fit.
        fitted: the rows it was fitted to, those without a best temperature included.
        held_out: for "plain" softmax and the "policy", over rows that no fit saw: mean `coefficient` of the correct
            item, mean `loss` -log of it, and the share of rows where it holds the `majority` of the weight.
        criterion: what "best" meant.
    """

    policy: Policy
    fitted: BestTemperatures
    held_out: dict[str, dict[str, float]]
    criterion: str

    def save(self, path: str | PathLike[str], *, model: str | None = None, data: str | None = None) -> None:
        """Write a policy card."""
        used = int(np.isfinite(self.fitted.inverse_temperature).sum())
        notes = f"criterion: {self.criterion}; {used} of {len(self.fitted.entropy)} rows had a best temperature"
        self.policy.save(path, model=model, data=data, held_out=self.held_out, notes=notes)


def calibrate(
    rows: Sequence[tuple[Any, Any]],
    *,
    form: str = "polynomial",
    criterion: str = "coefficient",
    bounds: tuple[float, float] = (1.0, 100.0),
    degree: int = 4,
    knots: int = 8,
    held_out: float = 0.25,
    seed: int = 0,
) -> Calibration:
    """Fit a policy to rows of logits whose correct item is known.

    Args:
        rows: pairs of logits (rows, n), -inf where masked, and the index of the correct item (rows,); one pair a size.
        form: "polynomial" (the paper's, of `degree`) or "table" (monotone, of `knots`); the other's number is not read.
        criterion, bounds: see `best_inverse_temperatures`. A polynomial's beta is at least 1: bounds that begin below
            are for a table.
        held_out: the share of rows kept for judging, drawn by `seed`.

    Raises:
        TypeError, ValueError: rows or options that do not fit, said before any work where it can be.
        NothingToFitError: too few rows, or too few that have a best temperature.

    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(400, 64)); logits[:, 0] += 2
    >>> calibrate([(logits, np.zeros(400, dtype=int))]).policy.domain is None
    False
    """
    if form not in FORMS:
        raise ValueError(f"expected a form of {', '.join(FORMS)}, got {form!r}")
    if not is_number(held_out) or not 0 < held_out < 1:
        raise ValueError(f"expected a share of rows to hold out between 0 and 1, got {short(held_out)}")
    if not is_count(seed):
        raise ValueError(f"expected a seed, a whole number of 0 or more, got {short(seed)}")
    check_degree(degree) if form == "polynomial" else check_knots(knots)
    if checked_bounds(bounds)[0] < 1 and form == "polynomial":
        raise ValueError(f"a polynomial's beta is at least 1, got bounds from {bounds[0]:g}; form='table' may soften")
    rows = list(rows)  # read more than once
    if not rows:
        raise ValueError("expected at least one pair (logits, correct), got none")
    if any(not isinstance(pair, tuple | list) or len(pair) != 2 for pair in rows):
        raise ValueError("expected a list of pairs (logits, correct), one per size; of one size [(logits, correct)]")
    checked = [checked_rows(logits, correct) for logits, correct in rows]
    rng = np.random.default_rng(seed)
    held = [rng.random(len(correct)) < held_out for _, correct in checked]
    if not any(aside.any() for aside in held):
        rows_given = sum(map(len, held))
        raise NothingToFitError(
            f"expected rows enough to hold out {held_out:g} of them, got {rows_given}, and drew none"
        )
    best = [
        best_inverse_temperatures(e[~aside], c[~aside], criterion=criterion, bounds=bounds)
        for (e, c), aside in zip(checked, held, strict=True)
    ]
    fitted = BestTemperatures(*(np.concatenate(parts) for parts in zip(*best, strict=True)))
    x, y = fitted.entropy, fitted.inverse_temperature
    policy: Policy = fit_polynomial(x, y, degree=degree) if form == "polynomial" else fit_table(x, y, knots=knots)
    kept = [(e[aside], c[aside]) for (e, c), aside in zip(checked, held, strict=True)]
    judged = {"plain": worth(Constant(1.0), kept), "policy": worth(policy, kept)}
    return Calibration(policy, fitted, judged, criterion)


def worth(policy: Policy, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """Return what the policy gives the correct item: mean coefficient, mean -log of it, share with the majority."""
    parts = []
    for logits, correct in rows:
        weights, stats = sharpened_rows(logits, policy)
        coefficient = np.take_along_axis(weights, correct[:, None], axis=-1)[:, 0]
        behind = stats.maximum - np.take_along_axis(logits, correct[:, None], axis=-1)[:, 0]
        # The largest weight is exp(0)/Z; from it the logarithm is exact where the coefficient underflows.
        loss = stats.inverse_temperature * behind - np.log(weights.max(axis=-1))
        parts.append(np.stack([coefficient, loss, coefficient >= 0.5]))
    means = np.concatenate(parts, axis=-1).mean(axis=-1)
    return dict(zip(("coefficient", "loss", "majority"), map(float, means), strict=True))
