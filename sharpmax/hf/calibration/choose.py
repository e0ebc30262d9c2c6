"""Choose what to keep of a fitted policy, on a split of its own: how strong, and in which heads.

    log beta -> strength · log beta in the heads that it moves most, 0 in the others

The best is the one whose answers lose least among those that are right no less often than the plain model and whose
text, of every kind and at every length, costs surely less than allowed: not by the mean of these windows, but by what
the mean of as many others stays below, 95 %; and with a margin, because those will be of other topics and modules. A
strength of 0 is the plain model, where the search begins: nothing may be the best choice. There is no largest strength:
it is doubled as long as that is better.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from sharpmax import defaults
from sharpmax.core.policies import Constant, LengthScaled, LogLinear, PerLayer, Policy
from sharpmax.hf.calibration.judge import Change, Exam, Sheet, mean_answer, sit, worst_perplexity_rise
from sharpmax.hf.calibration.judge import Once as Keep
from sharpmax.hf.models.load import LoadedModel
from sharpmax.runs.progress import Advance, stage

MARGIN = 0.8
"""The share of the allowed rise of perplexity that a choice may use."""

FIRST, FINE = 1.0, defaults.FINE
"""The strength that is tried first, and the share of a strength (or of the first) that is too small a step: between 1
and 2, steps end at 1/16. One of 1/8 moves perplexity at 4,096 tokens by nearly all that is allowed."""
FEWER = 0.5
"""The share of the heads that is tried beside all of them."""
EXPECTED = 9
"""How many candidates there are, usually: a guess for the bar."""


class Weakenable(Change, Protocol):
    """What else can be chosen from: a rival of a policy, which knows itself how to be weaker."""

    @property
    def by_head(self) -> bool:
        """Whether some of the heads may keep theirs, and others not."""

    def kept(self, share: float, strength: float) -> "Weakenable":
        """Return it at a strength in a share of the heads."""


class Choice(NamedTuple):
    """The chosen policy or rival and its name (None: the plain model), and what every candidate scored.

    A candidate that was given up early says where (`stopped`), and has no score of what was not read.
    """

    name: str | None
    policy: Any
    scores: dict[str, dict[str, Any]]


@dataclass
class _Contest:
    """The best candidate so far; each is asked first, and reads text only as long as it can still be chosen.

    No layer's output serves two strengths: they differ from the first layer on. What is saved is exact: a candidate
    whose answers lose too much, or whose worst text so far costs too much, cannot be chosen whatever follows.
    """

    loaded: LoadedModel
    exam: Exam
    most_rise: float
    once: Keep
    advance: Advance
    expected: int

    def __post_init__(self) -> None:
        self.scores: dict[str, dict[str, Any]] = {}
        self.plain = self._sit("plain", None)
        self.scores["plain"] = score(self.plain, self.plain)
        self.best = Choice(None, None, self.scores)
        self.lowest: float = self.scores["plain"]["answer_loss"]

    def wins(self, name: str, policy: Policy | Change) -> bool:
        """Try a candidate, and tell whether it is the best so far."""
        found = score(self.plain, sheet := self._sit(name, policy))
        if len(sheet.losses) < len(self.plain.losses):
            found["stopped"] = "text" if sheet.losses else "answers"
        self.scores[name] = found
        if found["answer_loss"] >= self.lowest or self._refused(found):
            return False
        self.best, self.lowest = Choice(name, policy, self.scores), found["answer_loss"]
        return True

    def _sit(self, name: str, policy: Policy | Change | None) -> Sheet:
        def hopeless(sheet: Sheet) -> bool:
            so_far = score(self.plain, sheet)
            return bool(so_far["answer_loss"] >= self.lowest) or self._refused(so_far)

        def keep(key: str, compute: Callable[[], Any]) -> Any:
            return self.once(f"{re.sub(r'[^A-Za-z0-9.]+', '-', name)}-{key}", compute)

        options: dict[str, Any] = {} if policy is None else {"enough": hopeless}
        sheet = sit(self.loaded, self.exam, policy, once=keep, name=f"choose: {name}", **options)
        self.advance(note=name, total=max(self.expected, len(self.scores) + 2))
        return sheet

    def _refused(self, found: Mapping[str, Any]) -> bool:
        is_allowed = found["rise_at_most"] <= MARGIN * self.most_rise
        return not (is_allowed and found["accuracy"] >= self.scores["plain"]["accuracy"])


def choose(
    loaded: LoadedModel,
    fitted: PerLayer | Weakenable,
    exam: Exam,
    *,
    most_rise: float,
    fine: float = FINE,
    once: Keep = lambda _, compute: compute(),
) -> Choice:
    """Return the best strength of a fitted policy on the exam, or the plain model if none is better.

    The strength is doubled as long as that is better; then half of it is added, a quarter, and so on; taken away only
    where with more of it answers lose more, not where text refuses it. Last, the same strength in fewer heads, where
    what was fitted is of heads. `once` keeps what each candidate scored, so that a killed choice goes on.
    """
    with stage("choose", EXPECTED) as advance:
        contest = _Contest(loaded, exam, most_rise, once, advance, EXPECTED)

        def better(strength: float, share: float = 1.0) -> bool:
            name = _name(strength, share)
            if strength <= 0 or name in contest.scores:
                return False
            weaker = kept(fitted, share, strength) if isinstance(fitted, PerLayer) else fitted.kept(share, strength)
            return contest.wins(name, weaker)

        strength, next_one = 0.0, FIRST
        while better(next_one):
            strength, next_one = next_one, 2 * next_one
        step = (strength or FIRST) / 2
        while step > fine * max(strength, FIRST):
            if better(strength + step):
                strength += step
            elif contest.scores[_name(strength + step)]["answer_loss"] >= contest.lowest and better(strength - step):
                strength -= step
            else:
                step /= 2
        if isinstance(fitted, PerLayer) or fitted.by_head:
            better(strength or FIRST, FEWER)
    return contest.best


def kept(policy: PerLayer, share: float, strength: float) -> PerLayer:
    """Return a fitted policy at a strength in a share of the heads, those it moves most; plain in the others."""
    movement = np.concatenate([_movement(layer) for layer in policy.policies])
    least = np.quantile(movement, 1 - share) if share < 1 else -np.inf
    return PerLayer(tuple(_weakened(layer, least, strength) for layer in policy.policies))


def search(
    loaded: LoadedModel,
    layers: int,
    values: Sequence[float],
    exam: Exam,
    *,
    most_rise: float,
    make: Callable[[float], Policy] = Constant,
    once: Keep = lambda _, compute: compute(),
) -> Choice:
    """Go through the layers once, keeping in each the value that helps most: coordinate descent, no gradient.

    `make(value)` is a layer's policy; a value is kept only if it lowers the answers' loss within the allowed rise.
    """
    kept: list[Policy] = [Constant(1.0)] * layers
    with stage("search", 1 + layers * len(values)) as advance:
        contest = _Contest(loaded, exam, most_rise, once, advance, 1 + layers * len(values))
        for layer in range(layers):
            for value in values:
                trial = [*kept[:layer], make(value), *kept[layer + 1 :]]
                if contest.wins(f"layer {layer} at {value:g}", PerLayer(tuple(trial))):
                    kept = trial
    best = contest.best
    return best if best.policy is None else Choice("search", best.policy, best.scores)


def score(plain: Sheet, found: Sheet) -> dict[str, Any]:
    """Return what a choice goes by: answers' loss and accuracy, the worst rise of perplexity, and what to expect."""
    loss, exact = mean_answer(found)
    rise, at_most = worst_perplexity_rise(plain, found)
    return {"answer_loss": loss, "accuracy": exact, "perplexity_rise": rise, "rise_at_most": at_most}


def best_of(scores: Mapping[str, dict[str, float]], *, most_rise: float) -> str:
    """Return which of several rivals to report: of those that text allows, if any, the one whose answers lose least."""
    allowed = [name for name, score in scores.items() if score["rise_at_most"] <= MARGIN * most_rise]
    return min(allowed or scores, key=lambda name: scores[name]["answer_loss"])


def _name(strength: float, share: float = 1.0) -> str:
    return f"{share:.0%} of heads at strength {strength:g}"


def _fields(policy: Policy) -> tuple[str, ...]:
    if isinstance(policy, LogLinear):
        return ("a", "b", "c")
    if isinstance(policy, LengthScaled):
        return ("slope",)
    raise TypeError(f"expected LogLinear or LengthScaled layers, got {type(policy).__name__}")


def _movement(policy: Policy) -> np.ndarray:
    """Return how far each head's parameters are from doing nothing."""
    columns = [np.asarray(getattr(policy, name), dtype=np.float64).reshape(-1) for name in _fields(policy)]
    return np.asarray(np.sqrt(sum(column**2 for column in np.broadcast_arrays(*columns))))


def _weakened(policy: Policy, least: float, strength: float) -> Policy:
    kept = (_movement(policy) >= least) * strength

    def scaled(value: Any) -> tuple[tuple[float], ...]:
        column = np.broadcast_to(np.asarray(value, dtype=np.float64).reshape(-1), kept.shape)
        return tuple((float(x),) for x in column * kept)

    return replace(policy, **{name: scaled(getattr(policy, name)) for name in _fields(policy)})  # type: ignore[type-var]
