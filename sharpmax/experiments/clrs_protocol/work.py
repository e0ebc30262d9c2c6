"""The computation of a run: choose learning rates, train seeds, ask them, and keep a record of each.

`Work` says what is computed and where it is kept; how a model is trained and asked is its subclasses' part: a
Transformer from nothing (`from_nothing.py`), or a language model that is fine-tuned (`language_model.py`).
"""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from typing import Any

from sharpmax.experiments.clrs_protocol.data import Questions, questions
from sharpmax.experiments.clrs_protocol.records import compact
from sharpmax.experiments.clrs_protocol.study import INFERENCE_ARMS, PLAIN, Study
from sharpmax.experiments.compare.train import Hardware, best_rate
from sharpmax.runs.progress import report_as
from sharpmax.runs.provenance import provenance
from sharpmax.runs.run_folder import RunFolder

SPARE = 2**20  # added to the run's seed: seeds that no model of an arm has

Ask = Callable[[str], list[dict[str, Any]]]
"""Ask trained models as an arm: returns the answers of each seed, by algorithm."""


@dataclass(frozen=True)
class Work(ABC):
    """What computes the records of one run, and where they go."""

    study: Study
    folder: RunFolder
    hardware: Hardware
    together: int

    @abstractmethod
    def train(self, arm: str, seeds: list[int], rate: float, scratch: Path) -> Ask:
        """Train seeds of an arm, with checkpoints in `scratch`, and return what asks them."""

    @abstractmethod
    def losses(self, arm: str, seed: int, scratch: Path) -> list[float]:
        """Return the loss on held-out examples after training with each of the study's learning rates."""

    @cached_property
    def asked(self) -> dict[str, Questions]:
        """Return the questions of every algorithm."""
        study = self.study
        return {name: questions(name, study.samples, study.lengths) for name in study.algorithms}

    def rate_of(self, arm: str) -> float:
        """Return the arm's learning rate: of those tried, the one with the lowest loss on held-out examples."""
        if len(self.study.rates) == 1:
            return self.study.rates[0]
        found = self.folder.once(f"rates-{arm}", partial(self._try_rates, arm))
        return float(found["chosen"])

    def _try_rates(self, arm: str) -> dict[str, Any]:
        study, scratch = self.study, self._scratch(f"rates-{arm}")
        best, tried = best_rate(study.rates, self.losses(arm, study.seed + SPARE, scratch))
        shutil.rmtree(scratch, ignore_errors=True)
        if best is None:
            raise ValueError(f"no learning rate of {arm} gave a finite loss; try lower ones with --rates")
        report_as(f"rates, {arm}")(", ".join(f"{rate}: {loss}" for rate, loss in tried.items()))
        return {"arm": arm, "tried": tried, "chosen": best, "steps": study.tuning_steps}

    def train_spare(self) -> None:
        """Make the records of plain attention on the spare seeds."""
        seeds = [self.study.seed + SPARE + i for i in range(1, self.study.spare + 1)]
        self._train_and_ask(PLAIN, seeds, {"gate": PLAIN})

    def train_arm(self, arm: str) -> None:
        """Make the records of every seed of the arm; of plain attention also with each rule at inference only."""
        asked = [PLAIN, *INFERENCE_ARMS] if arm == PLAIN else [arm]
        self._train_and_ask(arm, self.study.seeds_of(arm), {name: name for name in asked})

    def _train_and_ask(self, arm: str, seeds: Sequence[int], asked: dict[str, str]) -> None:
        """Train the seeds that lack a record, some at a time; `asked` has the arms to ask as, by a record's name."""
        missing = [seed for seed in seeds if any(not self.folder.has(f"{name}-seed{seed}") for name in asked)]
        for begin in range(0, len(missing), self.together):
            some = missing[begin : begin + self.together]
            rate, began = self.rate_of(arm), perf_counter()
            scratch = self._scratch("-".join((next(iter(asked)), *map(str, some))))
            ask = self.train(arm, some, rate, scratch)
            trained = perf_counter() - began
            for name, as_arm in asked.items():
                began = perf_counter()
                found = ask(as_arm)
                spent = {"training": round(trained / len(some), 1)}
                spent["asking"] = round((perf_counter() - began) / len(some), 1)
                about = {"arm": as_arm, "learning_rate": rate, "seconds": spent, "origin": provenance()}
                for seed, answers in zip(some, found, strict=True):
                    self.folder.once(f"{name}-seed{seed}", partial(dict, **about, seed=seed, answers=compact(answers)))
                report_as(name)(f"asked {len(some)} seeds in {perf_counter() - began:.0f} s")
            shutil.rmtree(scratch, ignore_errors=True)

    def _scratch(self, name: str) -> Path:
        return self.folder.path / "training" / name
