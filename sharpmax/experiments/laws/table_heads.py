"""Read tables of many lengths by TabPFN: n is the number of rows with a known class, and rows have no positions.

Short and long tables are drawn by different seeds, so what is fitted sees no rule that is judged.
"""

import numpy as np

from sharpmax.dispersion import Dispersion
from sharpmax.experiments.laws.heads import Setting
from sharpmax.extras import extra
from sharpmax.hf.diagnosis.probe import RowProbe
from sharpmax.models.tables import tabpfn
from sharpmax.runs.progress import Advance
from sharpmax.tasks.tables import draw
from sharpmax.tasks.tables.generated import FAMILIES

with extra("hf"):
    import torch
    from torch import Tensor

LONG_SEEDS = 500  # from here on; short tables take the seeds below


@torch.no_grad()
def measure(setting: Setting, *, seed: int, advance: Advance) -> Dispersion:
    """Answer questions about tables of every length, and return what the heads did, with the asked rows."""
    model, current = tabpfn.load(), [0]
    probe = RowProbe(torch.arange, lambda _: current[0], keep=True)

    def observer(layer: int, query: Tensor, key: Tensor) -> None:
        probe(layer, query, key, {})

    families = list(FAMILIES)
    for lengths, count, first in (
        (setting.fitted, setting.windows, 0),
        ((*setting.between, setting.target), setting.targets, LONG_SEEDS),
    ):
        for index in range(count):
            table = draw(families[index % len(families)], setting.rows + lengths[-1], 1000 * seed + first + index)
            rows, labels = torch.from_numpy(table.rows), torch.from_numpy(table.labels.astype(np.int64))
            for n in lengths:
                current[0] = n
                # The first rows are asked, so every length asks the same.
                order = torch.cat([torch.arange(setting.rows, setting.rows + n), torch.arange(setting.rows)])
                tabpfn.answer(model, rows[order], labels[order[:n]], classes=table.classes, observer=observer)
                advance(n)
    return probe.dispersion([f"layer {layer}" for layer in range(model.layers)])
