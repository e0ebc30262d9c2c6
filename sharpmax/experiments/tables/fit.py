"""Fit a slope per head on tables of their own, then choose on others how much of it to keep.

    beta = 1 + slope·log(n/trained),      minimise the mean of -log p(class) over slopes, by Adam

Nothing else moves: 48 numbers. Every step is kept, so that an interrupted fit goes on.
"""

from functools import partial
from math import log
from typing import Any

import numpy as np

from sharpmax.core.policies import Policy
from sharpmax.experiments.tables.plan import CHOOSE_SEEDS, FAMILIES, FIT_SEEDS, Plan
from sharpmax.experiments.tables.rules import card, sloped
from sharpmax.extras import extra
from sharpmax.models.tables import tabpfn
from sharpmax.models.tables.row_transformer import PLAIN, RowTransformer
from sharpmax.runs.progress import stage
from sharpmax.runs.run_folder import RunFolder
from sharpmax.tasks.tables import Table, draw

with extra("torch"):
    import torch
    from torch import Tensor
    from torch.nn import functional

    from sharpmax.torch import row_stats

WATCHED = 64  # asked rows whose entropy is measured
RATE, DECAYS, EPSILON = 0.08, (0.9, 0.99), 1e-8  # of Adam
SHARES = (0.0, 0.5, 1.0)  # of the fitted slopes, to choose from
SLOPES = (-1.0, 0.0, 1.0, 2.0)  # of all heads together, to choose from; in units of log n / log trained
TEMPERATURES = tuple(round(float(t), 3) for t in np.geomspace(0.5, 2.0, 25))


def tensors(table: Table, known: int, asked: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows, known ones first, the known classes and the asked ones.

    The first `asked` rows of the table are asked, so that every size asks the same.
    """
    order = np.r_[asked : asked + known, 0:asked]
    labels = torch.from_numpy(table.labels[order].astype(np.int64))
    return torch.from_numpy(table.rows[order]), labels[:known], labels[known:]


def mean_entropies(query: Tensor, key: Tensor) -> list[float]:
    """Return each head's mean entropy over the first asked rows."""
    entropy: Tensor = row_stats(query[:, :, :WATCHED].contiguous(), key.contiguous()).entropy[0]
    return entropy.double().mean(-1).tolist()


def fitted(model: RowTransformer, plan: Plan, seed: int, folder: RunFolder) -> dict[str, Any]:
    """Return `slopes` (layers, heads), `slope`, `temperature` and `entropies`, with what the choices were made of."""
    state: dict[str, Any] = {"slopes": np.zeros((model.layers, model.heads)).tolist()}
    state |= {"first": state["slopes"], "second": state["slopes"]}
    losses = []
    with stage("fit", plan.fit_steps) as advance:
        for step in range(plan.fit_steps):
            state = folder.once(f"fit-{step}", partial(_step, model, plan, seed, step, state))
            losses.append(state["loss"])
            advance(note=f"loss {state['loss']:.3f}")
    chosen = _choose(model, plan, seed, folder, state["slopes"])
    return {"fit_losses": losses, "fitted_slopes": state["slopes"], **chosen}


def is_fitted(plan: Plan, folder: RunFolder) -> bool:
    """Tell whether the fit and the choice are all there, so that to ask for them computes nothing."""
    names = ["plain", *(f"share{s:g}" for s in SHARES if s), *(f"slope{s:g}" for s in SLOPES if s)]
    keys = [f"choose-{family}-{name}" for family in FAMILIES for name in names]
    return all(folder.has(key) for key in [*keys, f"fit-{plan.fit_steps - 1}"])


def _step(model: RowTransformer, plan: Plan, seed: int, step: int, state: dict[str, Any]) -> dict[str, Any]:
    table = draw(FAMILIES[step % len(FAMILIES)], plan.fit_rows + plan.asked, FIT_SEEDS + seed + step)
    rows, known, wanted = tensors(table, plan.fit_rows, plan.asked)
    slopes = torch.tensor(state["slopes"], requires_grad=True)
    said = tabpfn.answer(model, rows, known, policy=card(slopes, plan.trained), classes=table.classes)
    loss = functional.nll_loss(said, wanted)
    g = torch.autograd.grad(loss, slopes)[0].double().numpy()
    first = DECAYS[0] * np.array(state["first"]) + (1 - DECAYS[0]) * g
    second = DECAYS[1] * np.array(state["second"]) + (1 - DECAYS[1]) * g**2
    sure = (first / (1 - DECAYS[0] ** (step + 1)), second / (1 - DECAYS[1] ** (step + 1)))
    moved = np.array(state["slopes"]) - RATE * sure[0] / (np.sqrt(sure[1]) + EPSILON)
    return {"slopes": moved.tolist(), "first": first.tolist(), "second": second.tolist(), "loss": float(loss.detach())}


def _choose(
    model: RowTransformer, plan: Plan, seed: int, folder: RunFolder, slopes: list[list[float]]
) -> dict[str, Any]:
    """Choose a share of the slopes, one slope for all heads and an output temperature, by the mean loss."""
    candidates: dict[str, Policy] = {
        f"share{share:g}": card(share * torch.tensor(slopes), plan.trained) for share in SHARES if share
    }
    candidates |= {f"slope{slope:g}": sloped(slope / log(plan.trained), plan.trained) for slope in SLOPES if slope}
    found: dict[str, list[float]] = {name: [] for name in ("plain", *candidates)}
    warm: list[list[float]] = []
    entropies = []
    with stage("choose", len(FAMILIES) * (1 + len(candidates))) as advance:
        for family in FAMILIES:
            table = draw(family, plan.choose_rows + plan.asked, CHOOSE_SEEDS + seed)
            plain = folder.once(f"choose-{family}-plain", partial(_plainly, model, plan, table))
            found["plain"].append(plain["loss"])
            warm.append(plain["by_temperature"])
            entropies.append(plain["entropies"])
            advance()
            for name, policy in candidates.items():
                key = f"choose-{family}-{name}"
                found[name].append(folder.once(key, partial(_loss, model, plan, table, policy)))
                advance(note=f"{family}, {name}: loss {found[name][-1]:.3f}")
    mean = {name: float(np.mean(values)) for name, values in found.items()}
    share = min(SHARES, key=lambda s: mean[f"share{s:g}" if s else "plain"])
    slope = min(SLOPES, key=lambda s: mean[f"slope{s:g}" if s else "plain"])
    return {
        "share": share,
        "slopes": (share * np.array(slopes)).tolist(),
        "slope": slope / log(plan.trained),
        "temperature": TEMPERATURES[int(np.argmin(np.mean(warm, axis=0)))],
        "entropies": np.mean(entropies, axis=0).tolist(),
        "choose_losses": mean,
    }


def _loss(model: RowTransformer, plan: Plan, table: Table, policy: Policy) -> float:
    rows, known, wanted = tensors(table, plan.choose_rows, plan.asked)
    with torch.inference_mode():
        said = tabpfn.answer(model, rows, known, policy=policy, classes=table.classes)
        return float(functional.nll_loss(said, wanted))


def _plainly(model: RowTransformer, plan: Plan, table: Table) -> dict[str, Any]:
    """Return plain's loss, its loss at every output temperature, and every head's entropy at the trained size."""
    rows, known, wanted = tensors(table, plan.choose_rows, plan.asked)
    seen: dict[int, list[float]] = {}

    def observer(layer: int, query: Tensor, key: Tensor) -> None:
        seen[layer] = mean_entropies(query, key)

    with torch.inference_mode():
        said = tabpfn.answer(model, rows, known, policy=PLAIN, classes=table.classes)
        short, known, _ = tensors(table, plan.trained, plan.asked)
        tabpfn.answer(model, short, known, classes=table.classes, observer=observer)
    return {
        "loss": float(functional.nll_loss(said, wanted)),
        "by_temperature": [float(functional.nll_loss((said / t).log_softmax(-1), wanted)) for t in TEMPERATURES],
        "entropies": [seen[layer] for layer in range(model.layers)],
    }
