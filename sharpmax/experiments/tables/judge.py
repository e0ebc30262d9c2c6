"""Ask one arm about one table at one size: the loss and the rightness of every asked row."""

from time import perf_counter
from typing import Any

from sharpmax.experiments.tables import baselines
from sharpmax.experiments.tables.fit import mean_entropies, tensors
from sharpmax.experiments.tables.plan import Cell, Plan
from sharpmax.experiments.tables.rules import policy_of
from sharpmax.extras import extra
from sharpmax.models.tables import tabpfn
from sharpmax.models.tables.row_transformer import RowTransformer
from sharpmax.tasks.tables import draw

with extra("torch"):
    import torch
    from torch import Tensor

Answers = dict[str, Any]


def judge(model: RowTransformer, plan: Plan, fitted: dict[str, Any], seed: int, cell: Cell) -> Answers:
    """Return `loss` and `right` of every asked row, and `seconds`.

    Of plain softmax also `said`, its log probabilities, the classes `wanted`, and `entropies` (layers, heads).
    """
    n, name, arm = cell
    table = draw(name, n + plan.asked, seed)
    rows, known, wanted = tensors(table, n, plan.asked)
    seen: dict[int, list[float]] = {}

    def observer(layer: int, query: Tensor, key: Tensor) -> None:
        seen[layer] = [round(h, 4) for h in mean_entropies(query, key)]

    start = perf_counter()
    with torch.inference_mode():
        if arm in baselines.BASELINES:
            said = baselines.BASELINES[arm](model, plan, rows, known, table.classes, seed)
        else:
            policy = policy_of(arm, fitted, plan.trained)
            watch = observer if arm == "plain" else None
            said = tabpfn.answer(model, rows, known, policy=policy, classes=table.classes, observer=watch)
    loss = -said.gather(1, wanted[:, None])[:, 0]
    found: Answers = {"loss": [round(float(x), 6) for x in loss], "right": (said.argmax(-1) == wanted).int().tolist()}
    found["seconds"] = round(perf_counter() - start, 3)
    if arm == "plain":
        found["said"] = [[round(float(p), 4) for p in row] for row in said]
        found["wanted"] = wanted.tolist()
        found["entropies"] = [seen[layer] for layer in range(model.layers)]
    return found
