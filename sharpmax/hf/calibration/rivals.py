"""What else may be fitted to a frozen model: a card's rivals, by the few numbers that each trains.

    learn       log beta = a + b·log(n/n0) + c·(H - 1)   per head, at every row: a card
    headscale   log beta = a                             per head: a card with a alone, merged (arXiv 2404.12224)
    seal-h      output of head h times 1 + s_h           merged (SEAL, arXiv 2501.15225)
    seal-c      the same of every channel of a head      merged
    position    e_ij - m_h·(i - j)/n0                    per head, ALiBi's form (arXiv 2108.12409)
    lora        W + B·A on queries and keys              rank 1, merged (arXiv 2106.09685)

and combinations. Each is the plain model where its fit begins. What is merged costs nothing at inference.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sharpmax.core.policies import Constant, LogLinear, PerLayer, Policy
from sharpmax.hf.calibration.answers import Question, answer_losses
from sharpmax.hf.calibration.descent import Draw, Recipe, descend, text_cost
from sharpmax.hf.calibration.descent_state import Course
from sharpmax.hf.calibration.learn import frozen, query_heads
from sharpmax.hf.calibration.position_bias import with_position_bias
from sharpmax.hf.calibration.weight_change import (
    Merged,
    Projections,
    Weights,
    add_low_rank,
    scale_outputs,
    scale_queries,
    weights_replaced,
)
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.models.quiet import quiet
from sharpmax.hf.sharpen.switch import extension_on, sharpen

TRIED_SCALE = 2.0  # of a query projection, to see whether a norm undoes it
LORA_SCALE = 2.0
"""alpha / rank, as peft scales a LoRA of rank r and alpha 2r."""


@dataclass(frozen=True)
class Arm:
    """One rival: the parts that it trains together, and what it costs where it runs."""

    parts: tuple[str, ...]
    at_inference: str


MERGED, CARD = "nothing: merged", "a statistics pass"
ARMS: dict[str, Arm] = {
    "learn": Arm(("card",), CARD),
    "headscale": Arm(("headscale",), MERGED),
    "seal-h": Arm(("seal-h",), MERGED),
    "seal-c": Arm(("seal-c",), MERGED),
    "position": Arm(("position",), "a bias per key"),
    "lora": Arm(("lora",), MERGED),
    "card+seal-h": Arm(("card", "seal-h"), CARD),
    "card+lora": Arm(("card", "lora"), CARD),
}
"""Every rival by name."""
RATES = {"card": 0.03, "headscale": 0.03, "seal-h": 0.03, "seal-c": 0.03, "position": 0.03, "lora": 0.01}
"""Learning rates of Adam by part."""
MERGEABLE = frozenset({"headscale", "seal-h", "seal-c", "lora"})
"""The parts that a model's own weights can hold."""

Numbers = dict[str, list[Tensor]]
"""What is trained: a tensor per layer, by name. All but the inner side of a LoRA begin at 0."""


@dataclass(frozen=True)
class Rival:
    """The numbers of an arm, and how much of them to keep.

    Attributes:
        strength: what they are multiplied by; 0 is the plain model.
        share: the share of the heads that keep theirs, those that are moved most.
    """

    arm: str
    numbers: Numbers
    n0: float = 128.0
    limit: float = 1.5
    strength: float = 1.0
    share: float = 1.0

    @classmethod
    def start(cls, loaded: LoadedModel, arm: str, recipe: Recipe, *, rank: int = 1) -> "Rival":
        """Return an arm where its fit begins: the plain model, in numbers that ask for their gradient.

        Raises:
            ValueError: no such arm.
            NotImplementedError: a model whose weights or attention the arm cannot reach.
        """
        if arm not in ARMS:
            raise ValueError(f"expected an arm among {', '.join(ARMS)}, got {arm!r}")
        heads, device, numbers = query_heads(loaded.model), loaded.model.device, Numbers()
        drawn = torch.Generator().manual_seed(recipe.seed)
        sides = Projections.of_model(loaded.model) if MERGEABLE.intersection(ARMS[arm].parts) else []
        for part in ARMS[arm].parts:
            if part == "headscale" and not _queries_scale(loaded.model, sides):
                raise NotImplementedError(
                    f"{loaded.name} normalises its queries, which undoes a scale of their projection: nothing can be "
                    "merged; learn the same as a card: --learned a"
                )
            numbers |= {
                name: [tensor.to(device).requires_grad_() for tensor in tensors]
                for name, tensors in _start(part, heads, sides, rank, drawn).items()
            }
        return cls(arm, numbers, recipe.n0, recipe.limit)

    @property
    def parts(self) -> tuple[str, ...]:
        """What it trains."""
        return ARMS[self.arm].parts

    @property
    def tensors(self) -> list[Tensor]:
        """All that is trained, in a fixed order."""
        return [tensor for tensors in self.numbers.values() for tensor in tensors]

    @property
    def rates(self) -> list[float]:
        """The learning rate of each of `tensors`."""
        return [RATES[name.partition(".")[0]] for name, tensors in self.numbers.items() for _ in tensors]

    @property
    def count(self) -> int:
        """How many numbers it trains."""
        return sum(tensor.numel() for tensor in self.tensors)

    @property
    def by_head(self) -> bool:
        """Whether all its numbers belong to one head each: only then can some of the heads keep theirs."""
        return "lora" not in self.parts

    @property
    def policy(self) -> PerLayer | None:
        """Its card, if it has one."""
        if "card" not in self.parts:
            return None
        columns = zip(*(self._kept(f"card.{name}") for name in "abc"), strict=True)
        return PerLayer(tuple(LogLinear(a=a, b=b, c=c, n0=self.n0, limit=self.limit) for a, b, c in columns))

    def kept(self, share: float, strength: float) -> "Rival":
        """Return it at a strength in a share of the heads."""
        return replace(self, share=share, strength=strength)

    def detached(self) -> "Rival":
        """Return it as numbers without a gradient."""
        return replace(self, numbers={name: [t.detach() for t in of] for name, of in self.numbers.items()})

    def weights(self, model: nn.Module) -> Weights:
        """Return the weights that it changes, as they are with it."""
        weights: Weights = {}
        if not MERGEABLE.intersection(self.parts):
            return weights
        for index, sides in enumerate(Projections.of_model(model)):
            if "headscale" in self.parts:
                scale = self._kept("headscale")[index].clamp(-self.limit, self.limit).exp()
                scale_queries(weights, sides, scale)
            for part in {"seal-h", "seal-c"}.intersection(self.parts):
                scale_outputs(weights, sides, 1 + self._kept(part)[index])
            if "lora" in self.parts:
                for name, layer in (("query", sides.query), ("key", sides.key)):
                    down, up = (self.numbers[f"lora.{name}.{side}"][index] for side in ("down", "up"))
                    add_low_rank(weights, layer, down, LORA_SCALE * self.strength * up)
        return weights

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Switch it on for a block: what it merges stands in the weights, the rest beside the model's attention."""
        policy: Policy | None = self.policy
        with ExitStack() as stack:
            stack.enter_context(weights_replaced(self.weights(model)))
            if "position" in self.parts:
                stack.enter_context(with_position_bias(model, self._kept("position"), policy or Constant(1.0)))
            elif policy is not None:
                stack.enter_context(sharpen(model, policy))
            yield

    def merge(self, model: nn.Module) -> Merged:
        """Merge it into the model's weights, until the block ends or `restore()`.

        Raises:
            NotImplementedError: it has a part that weights cannot hold.
        """
        if beside := sorted(set(self.parts) - MERGEABLE):
            raise NotImplementedError(f"{', '.join(beside)} cannot be merged into weights: it depends on each row")
        with torch.no_grad():
            return Merged(self.weights(model))

    def _kept(self, name: str) -> list[Tensor]:
        """Return the numbers of that name at this strength, 0 in the heads that keep none."""
        if self.share == 1:
            return [self.strength * tensor for tensor in self.numbers[name]]
        moved = [torch.cat([of[i].flatten(1) if of[i].ndim > 1 else of[i][:, None] for of in self.numbers.values()], 1)
                 for i in range(len(self.numbers[name]))]  # fmt: skip
        distance = [layer.detach().norm(dim=1) for layer in moved]
        least = torch.quantile(torch.cat(distance), 1 - self.share)
        kept = [(layer >= least) * self.strength for layer in distance]
        return [mask.view(-1, *[1] * (t.ndim - 1)) * t for mask, t in zip(kept, self.numbers[name], strict=True)]


@torch.no_grad()
def _queries_scale(model: Any, sides: Sequence[Projections]) -> bool:
    """Tell whether a scale of each layer's query projection scales its queries: a norm behind it undoes that."""

    def queries() -> list[Tensor]:
        seen: list[Tensor] = []
        watched: dict[str, Any] = {"probe": lambda layer, query, key, options: seen.append(query)}
        if extension_on(model) is not None:  # which may have two sets of queries; no cap or bias is beside it
            watched = {"observer": lambda layer, stats: seen.append(stats.maximum)}
        with sharpen(model, **watched):
            model.base_model(input_ids=torch.arange(8, device=model.device)[None])
        return seen

    before = queries()
    for layer, side in enumerate(sides):  # one at a time: it changes what later layers read
        weights: Weights = {}
        scale_queries(weights, side, torch.full((1,), TRIED_SCALE, device=before[layer].device))
        with weights_replaced(weights):
            ratio = queries()[layer].norm() / before[layer].norm()
        if not abs(float(ratio) - TRIED_SCALE) < 0.1:  # NaN of queries that are 0
            return False
    return True


def _start(
    part: str, heads: Sequence[int], sides: Sequence[Projections], rank: int, drawn: torch.Generator
) -> Mapping[str, list[Tensor]]:
    """Return the numbers of a part that leave the model as it is."""
    match part:
        case "card":
            return {f"card.{name}": [torch.zeros(n, 1) for n in heads] for name in "abc"}
        case "headscale" | "seal-h" | "position":
            return {part: [torch.zeros(n) for n in heads]}
        case "seal-c":
            widths = [side.output.in_features // n for side, n in zip(sides, heads, strict=True)]
            return {part: [torch.zeros(n, width) for n, width in zip(heads, widths, strict=True)]}
    found: dict[str, list[Tensor]] = {}
    for name, layers in (("query", [s.query for s in sides]), ("key", [s.key for s in sides])):
        # As peft begins a LoRA: one side as nn.Linear does, the other 0.
        found[f"lora.{name}.down"] = [
            nn.init.kaiming_uniform_(torch.empty(rank, layer.in_features), math.sqrt(5), generator=drawn)
            for layer in layers
        ]
        found[f"lora.{name}.up"] = [torch.zeros(layer.out_features, rank) for layer in layers]
    return found


def save_merged(loaded: LoadedModel, rival: Rival, folder: Path) -> Path:
    """Save the model with a rival in its weights, and its tokenizer, as transformers does; returns the folder.

    Raises:
        NotImplementedError: a rival that weights cannot hold.
        OSError: the folder cannot be written.
    """
    with rival.merge(loaded.model), quiet():
        loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class LearnedRival:
    """A fitted rival, and how the descent went."""

    rival: Rival
    course: Course


def learn_rival(
    loaded: LoadedModel,
    arm: str,
    draw: Draw,
    texts: Sequence[Tensor],
    recipe: Recipe,
    *,
    faster: float = 1.0,
    keep: Path | None = None,
) -> LearnedRival:
    """Fit an arm exactly as `learn` fits a card: the same loss, questions, text, price, steps and seed.

    Args:
        recipe: as of `learn`; the learning rates are those of each part in `RATES`.
        faster: times each of these rates.
        keep: a file to continue from after a kill, and to read the end from.
    """
    rival = Rival.start(loaded, arm, recipe)

    def answers(questions: list[Sequence[Question]]) -> Tensor:
        with rival.on(loaded.model):
            return answer_losses(loaded, questions[0]).mean()[None]

    def cost(ids: Tensor) -> Tensor:
        with torch.no_grad():
            plain = loaded.hidden(ids[0])
        with rival.on(loaded.model):
            changed = loaded.hidden(ids[0])
        return text_cost(loaded, plain, changed, ids, [recipe])

    with frozen(loaded.model):
        rates = [faster * rate for rate in rival.rates]
        (course,) = descend(rival.tensors, answers, cost, [draw], texts, [recipe], keep, rates=rates)
    return LearnedRival(rival.detached(), course)
