"""Watch, clip and guard in Hugging Face's Trainer: figures go to whatever it reports to.

    trainer.add_callback(AttentionWatch(trainer, every=10, record="runs/mine", threshold=100))

TensorBoard, W&B and trackio get them as they get the loss.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax.extras import extra
from sharpmax.hf.trainer_log import check_log, log_beside
from sharpmax.runs.watched import Reading
from sharpmax.torch import Guard, QKClip, Watch, watch

with extra("hf"):
    from transformers import TrainerCallback

LOGGED: dict[str, tuple[Callable[[Reading], np.ndarray], Callable[..., Any]]] = {
    "max_logit": (lambda reading: reading.maximum, np.max),
    "entropy": (lambda reading: reading.entropy, np.mean),
    "relative_entropy": (lambda reading: reading.relative_entropy, np.mean),
    "logsumexp": (lambda reading: reading.logsumexp, np.mean),
    "first_share": (lambda reading: reading.first_share, np.mean),
}
"""What is logged: how a reading gives it per head, and how the heads of a layer become one figure."""


class AttentionWatch(TrainerCallback):
    """Logs `attention/max_logit` and, per layer, `attention/layer{i}/max_logit`, `entropy`, `first_share` and others.

    A run that the Trainer resumes from a checkpoint continues its record at that step. The Trainer tells no callback of
    an exception: after one, `close()` gives the model back.

    Args:
        trainer: whose `log` gets the figures.
        every: watch one step of so many.
        record: a folder or file for `sharpmax monitor`; its loss is the one that the Trainer last logged.
        threshold: the largest logit that QK-clip leaves alone; None: no clip.
        guard: warns or stops when a head is at fault.
        per_head: log the maximum logit and the entropy of every head too.
    """

    def __init__(
        self, trainer: Any, *, every: int = 10, record: str | Path | None = None, threshold: float | None = None,
        guard: Guard | None = None, per_head: bool = False,
    ) -> None:  # fmt: skip
        check_log(trainer, every, "watch")
        self.trainer, self.every, self.record = trainer, every, record
        self.threshold, self.guard, self.per_head = threshold, guard, per_head
        self._watch: Watch | None = None
        self._clip: QKClip | None = None
        self._loss: float | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start watching, at the step that the Trainer starts at."""
        self.close()
        self._loss = None  # of a run before
        options = {"every": self.every, "record": self.record, "step": state.global_step, "guard": self.guard}
        self._watch = watch(kwargs["model"], **options)
        self._watch.listeners.append(self._log)
        self._clip = None if self.threshold is None else QKClip(self._watch, self.threshold)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Clip, and log a step that was watched."""
        if self._watch is None:
            return
        measured = self._watch.gauge.measuring
        (self._clip or self._watch).step(loss=self._loss)
        if measured:
            self._watch.flush()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Keep the loss for the record."""
        if logs and "loss" in logs:
            self._loss = float(logs["loss"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the model as it was."""
        self.close()

    def close(self) -> None:
        """Stop watching: the model attends as it did before."""
        if self._watch is not None:
            self._watch.close()
            self._watch = self._clip = None

    def _log(self, step: int, reading: Reading) -> None:
        figures = {"attention/max_logit": float(np.max(reading.maximum))}
        ends = np.cumsum((0, *reading.heads))
        for name, (of, together) in LOGGED.items():
            values = of(reading)
            for layer, (low, high) in enumerate(pairwise(ends)):
                if low == high:  # it has not run yet
                    continue
                figures[f"attention/layer{layer}/{name}"] = float(together(values[low:high]))
                if self.per_head and name in ("max_logit", "entropy"):
                    each = {f"attention/layer{layer}/head{i}/{name}": float(v) for i, v in enumerate(values[low:high])}
                    figures |= each
        if reading.scaled is not None:
            figures["attention/clipped_heads"] = float((reading.scaled < 1).sum())
        log_beside(self.trainer, figures)
