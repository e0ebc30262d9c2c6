"""Entropy and largest weight of every layer while a model trains, in whatever tracker the Trainer reports to.

trainer.add_callback(AttentionLog(trainer))
"""

import math
from typing import Any

import torch

from sharpmax.core.policies import Constant
from sharpmax.core.stats import RowStats
from sharpmax.extras import extra
from sharpmax.hf.sharpen.site import Observer, Run, runs_of
from sharpmax.hf.sharpen.switch import Sharpened, sharpen
from sharpmax.hf.trainer_log import check_log, log_beside

with extra("hf"):
    from transformers import TrainerCallback


class AttentionLog(TrainerCallback):
    """Logs `attention/layer{i}/entropy` and `…/largest_weight`, means over heads and queries, every `every` steps.

    An attention sink, as gpt-oss has them, is an item of its row as keys are: its weight may be the largest. It watches
    the forward pass of those steps only. A model that is sharpened already keeps its policy, and the figures are of its
    rows before sharpening; an observer of its own is told as before. The Trainer tells no callback of an exception:
    after one, `close()` (or the next step) gives the model back.
    """

    def __init__(self, trainer: Any, *, every: int = 50) -> None:
        check_log(trainer, every, "log")
        self.trainer, self.every = trainer, every
        self._seen: dict[int, list[tuple[float, float]]] = {}
        self._own: Sharpened | None = None
        self._borrowed: list[tuple[Run, Any]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start watching if this step is one to log."""
        self.close()  # a step before may have died
        self._seen = {}
        if state.global_step % self.every:
            return
        model = kwargs["model"]
        runs = runs_of(model)
        if not runs:
            self._own = sharpen(model, Constant(1.0), observer=self._observe)
        for run in runs:
            self._borrowed.append((run, run.observer))
            run.observer = self._observe if run.observer is None else _both(self._observe, run.observer)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop watching, and log what was seen."""
        self.close()
        if self._seen:
            names = ("entropy", "largest_weight")
            figures = {
                f"attention/layer{layer}/{name}": math.fsum(row[i] for row in rows) / len(rows)
                for layer, rows in sorted(self._seen.items())
                for i, name in enumerate(names)
            }
            log_beside(self.trainer, figures)
            self._seen = {}

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the model as it was, even if a step was cut short."""
        self.close()

    def close(self) -> None:
        """Stop watching: the model attends as it did before."""
        if self._own is not None:
            self._own.restore()
            self._own = None
        for run, observer in self._borrowed:
            run.observer = observer
        self._borrowed = []

    def _observe(self, layer: int, stats: RowStats) -> None:
        with torch.no_grad():
            seen = stats.count > 0
            entropy, largest = stats.entropy[seen].mean(), torch.exp(stats.maximum - stats.logsumexp)[seen].mean()
            self._seen.setdefault(layer, []).append((float(entropy), float(largest)))


def _both(one: Observer, other: Observer) -> Observer:
    def told(layer: int, stats: RowStats) -> None:
        one(layer, stats)
        other(layer, stats)

    return told
