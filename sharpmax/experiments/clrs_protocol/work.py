"""The computation of a run: choose learning rates, train seeds side by side, ask them, and keep a record of each."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import isfinite
from time import perf_counter
from typing import Any

from sharpmax.experiments.clrs_protocol.data import FreshSequences, Questions, questions
from sharpmax.experiments.clrs_protocol.exam import examine
from sharpmax.experiments.clrs_protocol.study import INFERENCE_ARMS, PLAIN, Study
from sharpmax.experiments.compare.train import Hardware, Recipe, train_seeds
from sharpmax.extras import extra
from sharpmax.models.transformer import PRECISIONS, Transformer, float32_products, loss_of
from sharpmax.runs.progress import report_as
from sharpmax.runs.provenance import provenance
from sharpmax.runs.run_folder import RunFolder

with extra("torch"):
    import torch
    from torch import Tensor

SPARE = 2**20  # added to the run's seed: seeds that no model of an arm has
HELD_OUT = 2**21  # the seed of sequences that nothing is trained on
HELD_OUT_STEPS = 8  # of those sequences


@dataclass(frozen=True)
class Work:
    """What computes the records of one run, and where they go."""

    study: Study
    folder: RunFolder
    hardware: Hardware
    together: int

    @cached_property
    def source(self) -> FreshSequences:
        """Return the training data."""
        return FreshSequences(self.study.algorithms)

    @cached_property
    def asked(self) -> dict[str, Questions]:
        """Return the questions of every algorithm."""
        study = self.study
        return {name: questions(name, study.samples, study.lengths) for name in study.algorithms}

    def rate_of(self, arm: str) -> float:
        """Return the arm's learning rate: of those tried, the one with the lowest loss on held-out sequences."""
        if len(self.study.rates) == 1:
            return self.study.rates[0]
        found = self.folder.once(f"rates-{arm}", partial(self._try_rates, arm))
        return float(found["chosen"])

    def _try_rates(self, arm: str) -> dict[str, Any]:
        study, model = self.study, self.study.transformer(arm)
        recipe = replace(study.recipe, steps=study.tuning_steps)
        seeds = [study.seed + SPARE] * len(study.rates)
        params = self._trained(f"rates-{arm}", model, recipe, seeds, list(study.rates))
        losses = self._held_out(model, params)
        shutil.rmtree(self.folder.path / "training" / f"rates-{arm}", ignore_errors=True)
        tried = {f"{rate:g}": loss if isfinite(loss) else None for rate, loss in zip(study.rates, losses, strict=True)}
        finite = [(loss, rate) for rate, loss in zip(study.rates, losses, strict=True) if isfinite(loss)]
        if not finite:
            raise ValueError(f"no learning rate of {arm} gave a finite loss; try lower ones with --rates")
        report_as(f"rates, {arm}")(", ".join(f"{rate}: {loss}" for rate, loss in tried.items()))
        return {"arm": arm, "tried": tried, "chosen": min(finite)[1], "steps": recipe.steps}

    @torch.no_grad()
    def _held_out(self, model: Transformer, params: Tensor) -> list[float]:
        """Return each seed's mean loss in nats on sequences of trained lengths."""
        recipe = replace(self.study.recipe, steps=HELD_OUT_STEPS)
        precision, named = PRECISIONS[self.hardware.asking], model.named(params)
        total = torch.zeros(len(params), device=params.device)
        with float32_products(precision.float32):
            for step, batches in self.source.batches(recipe, [HELD_OUT], params.device, 0):
                for batch in batches:
                    tokens, at, answers = (
                        part.expand(len(params), *part.shape[1:]) for part in (batch.tokens, batch.at, batch.answers)
                    )
                    places = model.places(tokens, HELD_OUT + step)
                    logits = model(named, tokens, at=at, places=places, precision=precision, streaming=False)
                    total += loss_of(logits, answers, batch.weights)
        losses: list[float] = (total / HELD_OUT_STEPS).tolist()
        return losses

    def train_spare(self) -> None:
        """Make the records of plain attention on the spare seeds."""
        seeds = [self.study.seed + SPARE + i for i in range(1, self.study.spare + 1)]
        self._train_and_ask(PLAIN, seeds, "gate", [PLAIN])

    def train_arm(self, arm: str) -> None:
        """Make the records of every seed of the arm; of plain attention also with each rule at inference only."""
        asked = [PLAIN, *INFERENCE_ARMS] if arm == PLAIN else [arm]
        self._train_and_ask(arm, self.study.seeds_of(arm), arm, asked)

    def _train_and_ask(self, arm: str, seeds: Sequence[int], name: str, asked: Sequence[str]) -> None:
        """Train the seeds that lack a record, some at a time, and ask them as each of the `asked` arms."""
        missing = [seed for seed in seeds if any(not self.folder.has(f"{_of(a, name)}-seed{seed}") for a in asked)]
        for begin in range(0, len(missing), self.together):
            some = missing[begin : begin + self.together]
            rate, began = self.rate_of(arm), perf_counter()
            recipe = replace(self.study.recipe, learning_rate=rate)
            scratch = f"{name}-" + "-".join(map(str, some))
            params = self._trained(scratch, self.study.transformer(arm), recipe, some)
            trained = perf_counter() - began
            for as_ in asked:
                began = perf_counter()
                records = self._asked(as_, params)
                spent = {"training": round(trained / len(some), 1)}
                spent["asking"] = round((perf_counter() - began) / len(some), 1)
                for seed, record in zip(some, records, strict=True):
                    about = {"arm": as_, "seed": seed, "learning_rate": rate, "seconds": spent, "origin": provenance()}
                    self.folder.once(f"{_of(as_, name)}-seed{seed}", partial(dict, **about, answers=record))
                report_as(f"{name}, as {as_}")(f"asked {len(some)} seeds in {perf_counter() - began:.0f} s")
            shutil.rmtree(self.folder.path / "training" / scratch, ignore_errors=True)

    def _asked(self, arm: str, params: Tensor) -> list[dict[str, Any]]:
        """Return a record per seed, by algorithm."""
        model = self.study.transformer(arm)
        if arm in INFERENCE_ARMS and model.parameters != params.shape[1]:
            raise AssertionError(
                f"{arm} has parameters of its own, so it cannot be asked with those of plain attention"
            )
        found: list[dict[str, Any]] = [{} for _ in params]
        for algorithm, asked in self.asked.items():
            each = examine(model, params, algorithm, asked, hardware=self.hardware)
            for record, answers in zip(found, each, strict=True):
                record[algorithm] = answers
        return found

    def _trained(
        self, scratch: str, model: Transformer, recipe: Recipe, seeds: list[int], rates: list[float] | None = None
    ) -> Tensor:
        told = report_as(scratch if len(scratch) < 40 else f"{scratch[:37]}...")
        return train_seeds(
            model,
            self.source,
            recipe,
            seeds,
            self.folder.path / "training" / scratch,
            hardware=self.hardware,
            rates=rates,
            report=lambda step, loss, ms: told(
                f"step {step:,} of {recipe.steps:,}, loss {loss:.4f}, {ms:.1f} ms per step"
            ),
        )


def _of(arm: str, name: str) -> str:
    """Return the name of a record: the gate's are its own."""
    return name if name == "gate" else arm
