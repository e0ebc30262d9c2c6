"""The cheapest rivals: fewer rows, several times fewer rows, and two classical models where scikit-learn is there."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from math import ceil, log
from typing import Any

import numpy as np

from sharpmax.experiments.tables.plan import Plan
from sharpmax.extras import extra
from sharpmax.models.tables import tabpfn
from sharpmax.models.tables.row_transformer import RowTransformer

with extra("torch"):
    import torch
    from torch import Tensor

LEAST = 1e-6  # probability that a classical model gives any class, so that no loss is infinite


def operations(rows: int, asked: int) -> float:
    """Return multiplications and additions of a forward pass, in units of one layer: products, then attention.

    Width 512 and twice as many hidden units: 8·512² products per row, and 2·512 a pair of a row and a key.
    """
    return 2.0 * (rows + asked) * 8 * 512**2 + 4.0 * 512 * rows * (rows + asked)


def subset(
    model: RowTransformer, plan: Plan, rows: Tensor, known: Tensor, classes: int, seed: int, members: int = 1
) -> Tensor:
    """Answer from random rows, as many as were trained on; several members are averaged as probabilities.

    Members are consecutive parts of a permutation of all rows, and then of another.
    """
    n, size = len(known), min(plan.trained, len(known))
    drawn = np.random.default_rng([seed, n])
    orders = np.concatenate([drawn.permutation(n) for _ in range(ceil(members * size / n))])
    said = []
    for member in range(members):
        chosen = torch.from_numpy(orders[member * size : (member + 1) * size])
        table = torch.cat([rows[chosen], rows[n:]])
        said.append(tabpfn.answer(model, table, known[chosen], classes=classes))
    return torch.stack(said).logsumexp(0) - log(members)


def parts(model: RowTransformer, plan: Plan, rows: Tensor, known: Tensor, classes: int, seed: int) -> Tensor:
    """Answer from all rows, in parts of as many as were trained on: every row counts once."""
    return subset(model, plan, rows, known, classes, seed, max(1, len(known) // plan.trained))


def equal(model: RowTransformer, plan: Plan, rows: Tensor, known: Tensor, classes: int, seed: int) -> Tensor:
    """Answer from as many subsets as cost what all rows at once cost, at most `plan.members`."""
    asked = len(rows) - len(known)
    affordable = operations(len(known), asked) / operations(min(plan.trained, len(known)), asked)
    return subset(model, plan, rows, known, classes, seed, min(plan.members, max(1, round(affordable))))


def _classical(module: str, name: str, **options: Any) -> Callable[..., Tensor]:
    def answer(model: Any, plan: Plan, rows: Tensor, known: Tensor, classes: int, seed: int) -> Tensor:
        n = len(known)
        x, y = rows.numpy(), known.numpy()
        mean, deviation = np.nanmean(x[:n], 0), np.nanstd(x[:n], 0) + 1e-6
        x = np.nan_to_num((x - mean) / deviation)
        learner = getattr(import_module(module), name)(**options).fit(x[:n], y)
        p = np.full((len(x) - n, classes), LEAST)
        p[:, learner.classes_] += learner.predict_proba(x[n:])
        return torch.from_numpy(np.log(p / p.sum(1, keepdims=True)))

    return answer


BASELINES: dict[str, Callable[..., Tensor]] = {"subset": subset, "parts": parts, "equal": equal}
CLASSICAL = ("logistic", "boosting")
if find_spec("sklearn") is not None:
    BASELINES["logistic"] = _classical("sklearn.linear_model", "LogisticRegression", max_iter=1000)
    BASELINES["boosting"] = _classical("sklearn.ensemble", "HistGradientBoostingClassifier", random_state=0)
