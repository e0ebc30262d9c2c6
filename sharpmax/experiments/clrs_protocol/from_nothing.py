"""Transformers from nothing: the contest's model, seeds side by side, on sequences that are fresh in every step."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sharpmax.experiments.clrs_protocol.data import FreshSequences
from sharpmax.experiments.clrs_protocol.exam import examine
from sharpmax.experiments.clrs_protocol.study import INFERENCE_ARMS
from sharpmax.experiments.clrs_protocol.work import Ask, Work
from sharpmax.experiments.compare.train import Recipe, train_seeds
from sharpmax.extras import extra
from sharpmax.models.transformer import PRECISIONS, Transformer, float32_products, loss_of
from sharpmax.runs.progress import report_as

with extra("torch"):
    import torch
    from torch import Tensor

HELD_OUT = 2**21  # the seed of sequences that nothing is trained on
HELD_OUT_STEPS = 8  # of those sequences


@dataclass(frozen=True)
class FromNothing(Work):
    """Trains all given seeds in one program."""

    @cached_property
    def source(self) -> FreshSequences:
        """Return the training data."""
        return FreshSequences(self.study.algorithms)

    def train(self, arm: str, seeds: list[int], rate: float, scratch: Path) -> Ask:
        """Train seeds side by side, and return what asks them."""
        recipe = replace(self.study.recipe, learning_rate=rate)
        params = self._trained(self.study.transformer(arm), recipe, seeds, scratch)

        def ask(as_arm: str) -> list[dict[str, Any]]:
            model = self.study.transformer(as_arm)
            if as_arm in INFERENCE_ARMS and model.parameters != params.shape[1]:
                raise AssertionError(f"{as_arm} has parameters of its own: it cannot be asked with plain attention's")
            found: list[dict[str, Any]] = [{} for _ in seeds]
            for algorithm, asked in self.asked.items():
                each = examine(model, params, algorithm, asked, hardware=self.hardware)
                for record, answers in zip(found, each, strict=True):
                    record[algorithm] = answers
            return found

        return ask

    @torch.no_grad()
    def losses(self, arm: str, seed: int, scratch: Path) -> list[float]:
        """Return the mean loss in nats on held-out sequences of trained lengths, of one model per learning rate."""
        study, model = self.study, self.study.transformer(arm)
        with torch.enable_grad():
            recipe = replace(study.recipe, steps=study.tuning_steps)
            params = self._trained(model, recipe, [seed] * len(study.rates), scratch, list(study.rates))
        precision, named = PRECISIONS[self.hardware.asking], model.named(params)
        total = torch.zeros(len(params), device=params.device)
        with float32_products(precision.float32):
            recipe = replace(study.recipe, steps=HELD_OUT_STEPS)
            for step, batches in self.source.batches(recipe, [HELD_OUT], params.device, 0):
                for batch in batches:
                    tokens, at, answers = (
                        part.expand(len(params), *part.shape[1:]) for part in (batch.tokens, batch.at, batch.answers)
                    )
                    places = model.places(tokens, HELD_OUT + step)
                    logits = model(named, tokens, at=at, places=places, precision=precision, streaming=False)
                    total += loss_of(logits, answers, batch.weights)
        found: list[float] = (total / HELD_OUT_STEPS).tolist()
        return found

    def _trained(
        self, model: Transformer, recipe: Recipe, seeds: list[int], scratch: Path, rates: list[float] | None = None
    ) -> Tensor:
        told = report_as(scratch.name)

        def report(step: int, loss: float, milliseconds: float) -> None:
            told(f"step {step:,} of {recipe.steps:,}, loss {loss:.4f}, {milliseconds:.1f} ms per step")

        return train_seeds(
            model, self.source, recipe, seeds, scratch, hardware=self.hardware, rates=rates, report=report
        )
