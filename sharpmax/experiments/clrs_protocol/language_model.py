"""A language model that is fine-tuned: the same questions as text, at random positions in training and when asked.

The text is the published one. Positions are whole numbers in order, drawn at random for every example, so that short
texts have seen positions of long ones. Examples are drawn once for all arms; a seed decides their order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax.core.policies import PAPER, Beyond, Policy
from sharpmax.experiments.clrs_protocol.data import FreshSequences
from sharpmax.experiments.clrs_protocol.study import PLAIN
from sharpmax.experiments.clrs_protocol.work import SPARE, Ask, Work
from sharpmax.experiments.compare.train import Recipe as Fresh
from sharpmax.extras import extra
from sharpmax.hf.finetune.answer_batches import Encoded, at_random_positions, encode
from sharpmax.hf.finetune.answer_model import each_answer, mean_loss
from sharpmax.hf.finetune.judging import autocast, on_policy
from sharpmax.hf.finetune.train import Recipe, finetune
from sharpmax.hf.finetune.trained_policy import policy_named
from sharpmax.hf.models.load_to_train import load_by_name
from sharpmax.runs.progress import report_as
from sharpmax.tasks.clrs_text.protocol import LONGEST_TRAINED
from sharpmax.tasks.clrs_text.sequences import Sequences
from sharpmax.tasks.clrs_text.tokens import decode

with extra("hf"):
    import torch

POSITIONS = 2048  # random positions lie below this; the longest text that is asked has some 700 tokens
DATA_SEED, HELD_OUT_SEED = 2**22, 2**22 + 1  # of the examples to train on, and of those to choose a learning rate by
HELD_OUT = 512  # examples
NAMES = {PLAIN: "none", "paper": "paper", "ssmax": "ssmax"}
"""The policy of each trained arm, as fine-tuning names it."""


@dataclass(frozen=True)
class LanguageModel(Work):
    """Fine-tunes one model after the other."""

    @cached_property
    def tokenizer(self) -> Any:
        """Return the model's tokenizer."""
        return load_by_name(self.study.model, seed=0, device="cpu").tokenizer

    @cached_property
    def examples(self) -> list[Encoded]:
        """Return the examples to train on: as many as all steps need, each seen about once."""
        recipe = self.study.recipe
        return self._drawn(recipe.steps * recipe.batch, DATA_SEED)

    @cached_property
    def test(self) -> dict[str, list[Encoded]]:
        """Return the questions of every algorithm, with their answers."""
        found = {}
        for seed, (name, asked) in enumerate(self.asked.items()):
            texts = encode(self.tokenizer, _texts(asked.rows))
            found[name] = at_random_positions(texts, POSITIONS, seed=SPARE + seed)
        return found

    def train(self, arm: str, seeds: list[int], rate: float, scratch: Path) -> Ask:
        """Fine-tune one seed, and return what asks it."""
        (seed,) = seeds
        model, policy = self._finetuned(arm, seed, rate, self.study.recipe.steps, scratch)

        def ask(as_arm: str) -> list[dict[str, Any]]:
            return [{name: self._answers(model, _asked_with(as_arm, policy, name, self), name) for name in self.asked}]

        return ask

    def losses(self, arm: str, seed: int, scratch: Path) -> list[float]:
        """Return the loss on held-out examples of one model per learning rate."""
        held_out = self._drawn(HELD_OUT, HELD_OUT_SEED)
        found = []
        for rate in self.study.rates:
            model, policy = self._finetuned(arm, seed, rate, self.study.tuning_steps, scratch / f"{rate:g}")
            with on_policy(model, policy), autocast(self.hardware.device):
                found.append(mean_loss(model, held_out))
        return found

    def _finetuned(self, arm: str, seed: int, rate: float, steps: int, scratch: Path) -> tuple[Any, Policy | None]:
        model = load_by_name(self.study.model, seed=seed % 2**32, device=self.hardware.device).model
        policy = policy_named(NAMES[arm], model)
        recipe = Recipe(
            steps=steps,
            tokens=self.study.tokens,
            learning_rate=rate,
            compile=self.hardware.compiled,
            seed=seed,
            save_every=0,
            log_every=min(20, steps),
        )
        finetune(model, self.examples, recipe, policy=policy, folder=scratch, report=report_as(scratch.name))
        return model, policy

    @torch.no_grad()
    def _answers(self, model: Any, policy: Policy | None, name: str) -> dict[str, Any]:
        """Return the log-likelihood of every answer, and a letter per token of those that are wrong."""
        with on_policy(model, policy), autocast(self.hardware.device):
            likely, said = each_answer(model, self.test[name])
        wrong = {}
        for index, (example, spoken) in enumerate(zip(self.test[name], said, strict=True)):
            right = example.ids[example.start :]
            if (spoken != right).any():
                wrong[str(index)] = self._letters(spoken, right)
        return {"log_likelihood": [round(float(each.sum()), 4) for each in likely], "wrong": wrong, "decoded": {}}

    def _letters(self, said: np.ndarray, right: np.ndarray) -> str:
        """Return a letter per token, as `tokens.mistake` does, as far as pieces of text tell."""
        return "".join(
            "." if a == b else _mistake(*self.tokenizer.batch_decode([[a], [b]]))
            for a, b in zip(said, right, strict=True)
        )

    def _drawn(self, count: int, seed: int) -> list[Encoded]:
        """Return fresh examples at random positions, as many of each algorithm and length as published."""
        source, per_step = FreshSequences(self.study.algorithms), 256
        recipe = Fresh(steps=-(-count // per_step), batch=per_step)
        texts: list[tuple[str, str]] = []
        for _, batches in source.batches(recipe, [seed], torch.device("cpu"), 0):
            for batch in batches:
                at, weights = batch.at[0, :, 0], batch.weights
                assert weights is not None
                answer = (weights[0, :, 0] > 0).sum(1)
                texts += _texts(Sequences(batch.tokens[0], at[:, 0] + 1, at[:, 0] + 1 + answer))
        return at_random_positions(encode(self.tokenizer, texts[:count]), POSITIONS, seed=seed)


def _texts(rows: Sequences) -> Iterator[tuple[str, str]]:
    """Yield questions and answers as text."""
    for tokens, start, end in zip(rows.tokens.tolist(), rows.starts.tolist(), rows.ends.tolist(), strict=True):
        yield decode(tokens[:start]), decode(tokens[start:end])


def _asked_with(arm: str, trained: Policy | None, algorithm: str, work: LanguageModel) -> Policy | None:
    """Return the policy to ask with: the one that was trained in, or a rule at inference only."""
    if arm == "paper-inference":
        return PAPER
    if arm == "beyond":
        longest = [
            len(example.ids)
            for example, length in zip(work.test[algorithm], work.asked[algorithm].lengths, strict=True)
            if length <= LONGEST_TRAINED[algorithm]
        ]
        return Beyond(float(max(longest)))
    return trained


def _mistake(said: str, right: str) -> str:
    if ("\n" in said) != ("\n" in right):
        return "e" if "\n" in said else "l"
    return "i" if _has_digit(said) == _has_digit(right) else "f"


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)
