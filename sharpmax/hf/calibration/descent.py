"""The descent that policies and their rival LoRA share: answers against what they cost on text.

    loss = answers + Σ_kw price_kw · cost_kw    cost = KL(plain ‖ changed) of next tokens, text k, windows of w tokens

A price is fixed, or it rises while its cost is above what is allowed and falls while it is below (dual ascent): then
the descent ends on the edge of the allowed, for every kind of text and at every window length.

Several descents go side by side, each with its own parameters: a row of a batch may belong to any of them, and one
pass through the model serves all. Nothing passes between them.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from sharpmax.hf.calibration.answers import Question
from sharpmax.hf.calibration.descent_state import Course, Keeper, Price, restore
from sharpmax.hf.models.load import LoadedModel
from sharpmax.runs.progress import stage

Draw = Callable[[int], Sequence[Question]]
"""The questions of a step."""


@dataclass(frozen=True)
class Recipe:
    """How to learn.

    Attributes:
        learned: which of a, b, c to learn; the others stay 0.
        steps, learning_rate: Adam; rising over the first tenth of the steps, then falling linearly to 0.
        penalty: the price of text, in answers' loss a nat; only the first one where `allowed` is given.
        allowed: the cost of text, in nats a token, that prices hold the model to.
        truth: the share of that cost that is the rise of the text's own loss, not the divergence from the plain model.
        windows, text_tokens: lengths of the text of a step, taken in turn, and how many tokens of it.
        n0, limit: as in `LogLinear`.
    """

    learned: str = "abc"
    steps: int = 60
    learning_rate: float = 0.03
    penalty: float = 20.0
    allowed: float | None = None
    truth: float = 0.0
    windows: tuple[int, ...] = (256, 1024, 4096)
    text_tokens: int = 256
    n0: float = 128.0
    limit: float = 1.5
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.learned or set(self.learned) - set("abc"):
            raise ValueError(f"expected to learn some of a, b, c, got {self.learned!r}")
        if self.steps < 1 or not self.windows:
            raise ValueError(f"expected a step and a window or more, got {self.steps} and {len(self.windows)}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"expected a learning rate above 0, got {self.learning_rate}")
        if not 0 <= self.penalty < math.inf:
            raise ValueError(f"expected a penalty of at least 0, got {self.penalty}")
        if self.allowed is not None and not 0 < self.allowed < math.inf:
            raise ValueError(f"expected a positive allowance, got {self.allowed}")
        if not 0 <= self.truth <= 1:
            raise ValueError(f"expected a share of truth from 0 to 1, got {self.truth}")


def descend(
    trained: Sequence[Tensor],
    answers: Callable[[list[Sequence[Question]]], Tensor],
    cost: Callable[[Tensor], Tensor],
    draws: Sequence[Draw],
    texts: Sequence[Tensor],
    recipes: Sequence[Recipe],
    keep: Path | None = None,
    *,
    rates: Sequence[float] = (),
) -> list[Course]:
    """Adam on the tensors in `trained`, in place; one course for each recipe.

    Args:
        answers: the loss (runs,) of each run's own questions.
        cost: the cost (runs,) of ids (runs, windows, length).
        draws, recipes: one for each run; recipes may differ in what they learn, price and seed.
        texts: ids (1, n), taken in turn.
        keep: a file to continue from if it is there, and to keep the state in, also on Ctrl-C.
        rates: a learning rate for each tensor, where it is not the recipe's.

    Raises:
        ValueError: runs of other paces, no text, or a file of a fit by other recipes, rates or texts.
    """
    shared = recipes[0]
    if any(_pace(recipe) != _pace(shared) for recipe in recipes) or len(draws) != len(recipes):
        raise ValueError("runs side by side need one draw each, and the same steps, rate, windows and tokens of text")
    if not texts or min(text.shape[1] for text in texts) < 2:
        raise ValueError("expected texts of two tokens or more to hold the model to itself on")
    rates = rates or [shared.learning_rate] * len(trained)
    of_rate: dict[float, list[Tensor]] = {}
    for tensor, rate in zip(trained, rates, strict=True):
        of_rate.setdefault(rate, []).append(tensor)
    optimiser = torch.optim.Adam([{"params": tensors, "lr": rate} for rate, tensors in of_rate.items()])
    full = [group["lr"] for group in optimiser.param_groups]
    turns = [(kind, window) for kind in range(len(texts)) for window in shared.windows]
    prices = {turn: [Price(recipe.penalty, recipe.allowed, len(texts)) for recipe in recipes] for turn in turns}
    every_price = [price for of_turn in prices.values() for price in of_turn]
    courses = [Course([], [], []) for _ in recipes]
    begin = 0
    of = repr((list(recipes), full, [hashlib.sha256(np.asarray(text.cpu()).tobytes()).hexdigest() for text in texts]))
    if keep is not None and keep.exists():
        begin = restore(keep, of, trained, optimiser, every_price, courses)
    keeper = Keeper(keep, of, trained, optimiser, every_price, courses)
    with stage("fit", shared.steps) as advance, keeper:
        advance(begin)
        for step in range(begin, shared.steps):
            kind, window = turn = turns[step % len(turns)]
            optimiser.zero_grad()
            asked = answers([draw(step) for draw in draws])
            torch.autograd.backward(asked.sum())
            value = torch.tensor([price.value for price in prices[turn]], device=asked.device)
            paid = torch.zeros_like(asked)
            if value.any():
                drawn = [_windows(texts[kind], window, shared.text_tokens, (r.seed, step)) for r in recipes]
                paid = cost(torch.stack(drawn))
                torch.autograd.backward((value * paid).sum())
            for group, rate in zip(optimiser.param_groups, full, strict=True):
                group["lr"] = rate * _share_of_rate(step, shared.steps)
            losses, costs = asked.tolist(), paid.tolist()
            with keeper.changing():
                optimiser.step()
                for course, price, loss, spent in zip(courses, prices[turn], losses, costs, strict=True):
                    course.answers.append(loss)
                    course.cost.append(spent)
                    course.price.append(price.value)
                    price.follow(spent)
            keeper.made(step + 1, last=step + 1 == shared.steps)
            advance(note=f"answers' loss {fmean(losses):.3f}, cost of text {fmean(costs):.4f}")
    return courses


def _share_of_rate(step: int, steps: int) -> float:
    """Rise over the first tenth, then fall linearly: Adam's first steps move every head as far as the rate allows."""
    return min(1.0, 10 * (step + 1) / steps) * (1 - step / steps)


def _pace(recipe: Recipe) -> tuple[object, ...]:
    return recipe.steps, recipe.learning_rate, recipe.windows, recipe.text_tokens, recipe.n0, recipe.limit


def _windows(text: Tensor, window: int, tokens: int, seed: tuple[int, int]) -> Tensor:
    """Return as many windows of the text, at random places, as hold about that many tokens: at least one."""
    window = min(window, text.shape[1])
    starts = np.random.default_rng(seed).integers(text.shape[1] - window + 1, size=max(1, tokens // window))
    return torch.cat([text[:, start : start + window] for start in starts.tolist()])


def text_cost(
    loaded: LoadedModel, plain: Tensor, changed: Tensor, ids: Tensor, recipes: Sequence[Recipe], *, chunk: int = 1024
) -> Tensor:
    """Return each run's cost of text, (runs,), in nats: mean KL(plain ‖ changed) of the next token, or by its `truth`.

    `plain` and `changed` are the last hidden states of the two models on `ids` (runs, windows, length).
    Distributions over the vocabulary are made for a chunk of tokens at a time, and made again on the way back: at 4,096
    tokens they fill gigabytes.
    """

    def of(before: Tensor, after: Tensor, following: Tensor) -> Tensor:
        log_p, log_q = (functional.log_softmax(loaded.logits(hidden), dim=-1) for hidden in (before, after))
        difference = log_p - log_q
        return torch.stack([(log_p.exp() * difference).sum(-1), difference.gather(-1, following[:, None])[:, 0]])

    following = ids.roll(-1, -1).flatten()  # the last of a window has none: left out below
    whole = (*(hidden.flatten(0, 1) for hidden in (plain, changed)), following)
    pieces = zip(*(torch.split(tensor, chunk) for tensor in whole), strict=True)
    found = torch.cat([checkpoint(of, *piece, use_reentrant=False) for piece in pieces], dim=1).view(2, *ids.shape)
    truth = torch.tensor([recipe.truth for recipe in recipes], device=ids.device)
    return (1 - truth) * found[0].mean((1, 2)) + truth * found[1, ..., :-1].mean((1, 2))
