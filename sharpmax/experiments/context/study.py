"""Compute the study a part of a cell at a time; each is kept once computed, so a killed run continues.

A cell is a scaling, an arm and a factor. Its parts: losses of long documents by block of positions, losses of short
text, and questions of each task. Items are the same in every cell of a factor, so cells are compared item by item.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from sharpmax import defaults
from sharpmax.cards import card_file
from sharpmax.core.cards import load_card, policy_from_json, policy_to_json
from sharpmax.core.extension import extension_called
from sharpmax.core.policies import Constant, LengthScaled, Policy
from sharpmax.defaults import SCALINGS
from sharpmax.experiments.context.plan import ARMS, BETAS, Plan
from sharpmax.extras import extra
from sharpmax.hf.calibration.answers import answer
from sharpmax.hf.calibration.reply import reply
from sharpmax.hf.calibration.rivals import ARMS as RIVALS
from sharpmax.hf.calibration.rivals import Rival, learn_rival
from sharpmax.hf.calibration.splits import text_of
from sharpmax.hf.calibration.text_loss import text_losses, token_losses
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.models.tiny_llama import TINY, TRAINED
from sharpmax.hf.sharpen.extended import extended
from sharpmax.hf.sharpen.switch import sharpen
from sharpmax.runs.progress import report_as
from sharpmax.runs.run_folder import RunFolder
from sharpmax.tasks.documents import Document, documents
from sharpmax.tasks.filling import filling
from sharpmax.tasks.prompt import Prompt
from sharpmax.tasks.prompts import draw, seed_of
from sharpmax.tasks.ruler import ANSWER_TOKENS, score

with extra("hf"):
    import torch
    from torch import Tensor

told = report_as("context")

SHORTEST, SAMPLE, ROOM = 2048, 10_000, 0.9
"""Of a fit: the length in tokens from which on questions have their usual entries; the characters that tell how long a
token is; and the share of a length that a question may fill."""

_one_of = "|".join
NAMED = re.compile(
    rf"(?P<scaling>{_one_of(SCALINGS)})-(?P<arm>{_one_of(ARMS)})-(?P<factor>[0-9.e+]+)x-(?P<part>(text|short|ask).*)"
)
"""A part on disk, as `named` calls it."""

EXACT = "float32"
"""The dtype of products on a processor, and of cells that do not say."""

SEVERAL = frozenset({"vt", "cwe", "fwe"})
"""Tasks whose answer has several parts, in any order: a reply is generated, and scored as RULER does."""


class Study:
    """One model, one folder: every part of every cell by its key."""

    def __init__(self, plan: Plan, loaded: LoadedModel, folder: RunFolder, *, seed: int, products: str = EXACT) -> None:
        self.plan, self.loaded, self.folder, self.seed, self.products = plan, loaded, folder, seed, products
        self.trained = loaded.context
        self._documents = cache(self._read)
        self._rivals: dict[tuple[str, str, float], Rival] = {}

    def parts(self) -> list[tuple[str, str, float, str]]:
        """Return every part as (scaling, arm, factor, part), the shortest and the most asked for first."""
        plan = self.plan
        parts = [f"text{index}" for index in range(plan.documents)] + ["short"] * bool(plan.short_tokens)
        parts += [f"ask-{task}" for task in plan.tasks if plan.prompts]
        return [
            (scaling, arm, factor, part)
            for factor in sorted(plan.factors)
            for part in parts
            for arm in plan.arms
            for scaling in plan.scalings
            if scaling == "none" or factor > 1  # within the trained length there is nothing to scale
        ]

    def kept(self) -> dict[tuple[str, str, float, str], Any]:
        """Return every part that is on disk: the plan's, and those of other cells that an earlier call computed."""
        there = self.folder.steps
        known = {named(*key): key for key in self.parts()}
        for name in there:
            if name not in known and (found := NAMED.fullmatch(name)):
                known[name] = (found["scaling"], found["arm"], float(found["factor"]), found["part"])
        return {key: self.folder.read(name) for name, key in known.items() if name in there}

    def must_be_alike(self) -> None:
        """Raise ValueError where cells on disk have products of another dtype: they would be compared with these."""
        others = {found.get("products", EXACT) for found in self.kept().values()} - {self.products}
        if others:
            raise ValueError(
                f"{self.folder.path} holds cells with products in {', '.join(sorted(others))}, and this device has "
                f"them in {self.products}; choose another --out, or the --device of before"
            )

    def has(self, key: tuple[str, str, float, str]) -> bool:
        """Tell whether a part is on disk."""
        return self.folder.has(named(*key))

    def part(self, key: tuple[str, str, float, str]) -> Any:
        """Return one part of a cell, from disk or computed."""
        scaling, arm, factor, what = key

        def compute() -> Any:
            began = time.perf_counter()
            with self.cell(scaling, arm, factor) as loaded, torch.no_grad():
                found = self._measured(loaded, factor, what)
            return {**found, "products": self.products, "seconds": round(time.perf_counter() - began, 1)}

        fresh = not self.has(key)
        found = self.folder.once(named(*key), compute)
        if fresh:
            told(f"{named(*key)}: {found['seconds']} s")
        return found

    @contextmanager
    def cell(self, scaling: str, arm: str, factor: float) -> Iterator[LoadedModel]:
        """Return the model of one cell, switched on as long as the block lasts."""
        policy = self._policy(arm, scaling, factor)
        with self._extended(scaling, factor) as loaded:
            if policy is None:
                with self._rival(loaded, arm, scaling, factor).on(loaded.model):
                    yield loaded
            else:
                with sharpen(loaded.model, policy):
                    yield loaded

    def _measured(self, loaded: LoadedModel, factor: float, what: str) -> dict[str, Any]:
        length = int(factor * self.trained)
        if what.startswith("text"):
            name, ids = self._document("report", length, int(what[4:]))
            losses = torch.cat([torch.full((1, 1), torch.nan), token_losses(loaded, ids)], dim=1)[0]
            blocks = [float(block[~block.isnan()].mean()) for block in torch.split(losses, self.plan.block)]
            return {"document": name, "tokens": ids.shape[1], "blocks": [round(loss, 6) for loss in blocks]}
        if what == "short":
            ids = self._short()
            by_window = {window: text_losses(loaded, ids, window=window) for window in self.plan.windows}
            return {"windows": {str(window): [round(loss, 6) for loss in of] for window, of in by_window.items()}}
        task = what.removeprefix("ask-")
        asked = self._questions(task, length)
        found = answer(loaded, [(prompt.text, prompt.answer) for prompt in asked])
        told = {"size": asked[0].size, "exact": "".join(str(int(a.exact)) for a in found)}
        told["loss"] = [round(a.loss, 4) for a in found]
        if task in SEVERAL:
            told["share"] = [
                round(score(prompt, reply(loaded, prompt.text, ANSWER_TOKENS[task])), 4) for prompt in asked
            ]
        return told

    def _document(self, split: str, length: int, index: int) -> tuple[str, Tensor]:
        found = self._documents(split, length)
        if index >= len(found):
            raise ValueError(f"there are {len(found)} documents of {length} tokens to {split} on: lower --documents")
        return found[index]

    def _read(self, split: str, length: int) -> list[tuple[str, Tensor]]:
        """Return the documents of a split that have so many tokens, cut to them, by name."""
        found = _tiny_documents(split) if self.plan.model == TINY else documents(split, least=2 * length)
        ids = ((document.name, self.loaded.tokens(document.text)) for document in found)
        return [(name, tokens[:, :length]) for name, tokens in ids if tokens.shape[1] >= length]

    def _short(self) -> Tensor:
        """Return short text: the beginnings of documents, from the end of the list; long ones come from its start."""
        plan, split = self.plan, self._documents("report", self.trained)
        pieces = [ids[:, : max(plan.windows)] for _, ids in reversed(split)]
        return torch.cat(pieces, dim=1)[:, : plan.short_tokens]

    def _questions(self, task: str, length: int) -> list[Prompt]:
        """Return questions of a task that fill a length, of the split to report on."""
        size = filling(task, length, lambda text: self.loaded.tokens(text).shape[1])
        seed = seed_of(self.seed, "report")
        return [draw(task, size, seed=seed, index=index) for index in range(self.plan.prompts)]

    def _policy(self, arm: str, scaling: str, factor: float) -> Policy | None:
        """Return the policy of an arm; None for one that changes weights."""
        kind = ARMS[arm].kind
        if kind in RIVALS:
            return None
        if kind == "log-n":
            return LengthScaled.log_n(self.trained)
        if kind == "shipped":
            return load_card(card_file(self.plan.model)).policy
        if kind == "beta":
            return Constant(self._one_beta(scaling, factor))
        if kind == "fitted":
            return policy_from_json(self._fitted(scaling, factor))
        return Constant(1.0)

    def _one_beta(self, scaling: str, factor: float) -> float:
        """Return the beta with which a document to choose on loses least at the longer length; 1 is among them."""

        def chosen() -> Any:
            _, ids = self._document("choose", int(factor * self.trained), 0)
            losses = {}
            with self._extended(scaling, factor) as loaded:
                for beta in (1.0, *BETAS):
                    with torch.no_grad(), sharpen(loaded.model, Constant(beta)):
                        losses[str(beta)] = float(token_losses(loaded, ids).mean())
            return losses

        losses = self.folder.once(f"choose-beta-{scaling}-{factor:g}", chosen)
        return float(min(losses, key=losses.__getitem__))

    def _fitted(self, scaling: str, factor: float) -> Any:
        """Return a card's policy fitted as `sharpmax calibrate --extend` fits it: at the longer length."""

        def fit() -> Any:
            from sharpmax.hf.calibration.learn import learn

            with self._extended(scaling, factor) as loaded:
                return policy_to_json(learn(loaded, *self._fitting(factor)).policy)

        return self.folder.once(f"fit-{scaling}-{factor:g}", fit)

    def _rival(self, loaded: LoadedModel, arm: str, scaling: str, factor: float) -> Rival:
        """Return what a rival fitted at the longer length; a file keeps the numbers, so a killed run has them."""
        kind = ARMS[arm].kind
        if (kind, scaling, factor) not in self._rivals:
            keep = self.folder.path / f"fit-{arm}-{scaling}-{factor:g}.safetensors"
            fitted = learn_rival(loaded, kind, *self._fitting(factor), keep=keep)
            self._rivals[kind, scaling, factor] = fitted.rival
        return self._rivals[kind, scaling, factor]

    def _extended(self, scaling: str, factor: float) -> Any:
        return extended(self.loaded, extension_called(scaling, float(factor), self.trained))

    def _fitting(self, factor: float) -> tuple[Any, list[Tensor], Any]:
        """Return the questions, the texts and the recipe of a fit at a length."""
        from sharpmax.hf.calibration.fitting_data import fitting_questions, recipe_for

        length = int(factor * self.trained)
        texts = [ids for _, ids in self._documents("fit", length)]
        sizes, before = defaults.FIT_SIZES if length >= SHORTEST else (1, 1), text_of("fit")
        drawn = (self.seed, self.plan.questions)
        bare = fitting_questions(defaults.FIT_TASKS, (sizes[1], sizes[1]), *drawn)(0)
        longest = max(self.loaded.tokens("".join(question)).shape[1] for question in bare)
        characters = len(before[:SAMPLE]) / self.loaded.tokens(before[:SAMPLE]).shape[1]  # of a token
        most = max(0, int(ROOM * (length - longest) * characters))
        draw = fitting_questions(defaults.FIT_TASKS, sizes, *drawn, before=before, most=min(most, len(before) - 1))
        windows = (*self.plan.windows, length)
        recipe = recipe_for(defaults.MOST_RISE, steps=self.plan.steps, windows=windows, truth=defaults.TRUTH)
        return draw, texts, recipe


def _tiny_documents(split: str) -> list[Document]:
    """Return what the quick run's model reads: Python's reference of a split, in parts of eight trained contexts."""
    text, length = text_of(split), 8 * TRAINED
    return [Document(f"part{start // length}", text[start : start + length]) for start in range(0, 8 * length, length)]


def named(scaling: str, arm: str, factor: float, part: str) -> str:
    """Return what a part is called on disk."""
    return f"{scaling}-{arm}-{factor:g}x-{part}".replace(":", "-")
