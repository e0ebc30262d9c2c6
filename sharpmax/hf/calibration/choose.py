"""Choose what to keep of a fitted policy, on a split of its own: how strong, and in which heads.

    log beta -> strength · log beta in the heads that it moves most, 0 in the others

The best is the one whose answers lose least among those that are right no less often than the plain model and whose
text, of every kind and at every length, costs surely less than allowed: not by the mean of these windows, but by what
the mean of as many others stays below, 95 %; and with a margin, because those will be of other topics and modules. A
strength of 0 is the plain model, where the search begins: nothing may be the best choice. There is no largest strength:
it is doubled as long as that is better.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sharpmax.core.policies import Constant, LengthScaled, LogLinear, PerLayer, Policy
from sharpmax.hf.calibration.judge import Exam, Sheet, mean_answer, sit, worst_perplexity_rise
from sharpmax.hf.models.load import LoadedModel

MARGIN = 0.8
"""The share of the allowed rise of perplexity that a choice may use."""

FIRST, FINE = 1.0, 1 / 32
"""The strength that is tried first, and the share of a strength (or of the first) that is too small a step: between 1
and 2, steps end at 1/16. One of 1/8 moves perplexity at 4,096 tokens by nearly all that is allowed."""
FEWER = 0.5
"""The share of the heads that is tried beside all of them."""


class Choice(NamedTuple):
    """The chosen policy and its name (None: the plain model), and what every candidate scored."""

    name: str | None
    policy: Policy | None
    scores: dict[str, dict[str, float]]


def choose(loaded: LoadedModel, fitted: PerLayer, exam: Exam, *, most_rise: float) -> Choice:
    """Return the best strength of a fitted policy on the exam, or the plain model if none is better.

    The strength is doubled as long as that is better; then half of it is added, a quarter, and so on; taken away only
    where with more of it answers lose more, not where text refuses it. Last, the same strength in fewer heads.
    """
    plain = sit(loaded, exam)
    scores = {"plain": score(plain, plain)}
    best = Choice(None, None, scores)
    lowest = scores["plain"]["answer_loss"]

    def better(strength: float, share: float = 1.0) -> bool:
        nonlocal best, lowest
        name = _name(strength, share)
        if strength <= 0 or name in scores:
            return False
        policy = kept(fitted, share, strength)
        found = scores[name] = score(plain, sit(loaded, exam, policy))
        if found["answer_loss"] >= lowest or not _admissible(found, scores["plain"], most_rise):
            return False
        best, lowest = Choice(name, policy, scores), found["answer_loss"]
        return True

    strength, next_one = 0.0, FIRST
    while better(next_one):
        strength, next_one = next_one, 2 * next_one
    step = (strength or FIRST) / 2
    while step > FINE * max(strength, FIRST):
        if better(strength + step):
            strength += step
        elif scores[_name(strength + step)]["answer_loss"] >= lowest and better(strength - step):
            strength -= step
        else:
            step /= 2
    better(strength or FIRST, FEWER)
    return best


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
) -> Choice:
    """Go through the layers once, keeping in each the value that helps most: coordinate descent, no gradient.

    `make(value)` is a layer's policy; a value is kept only if it lowers the answers' loss within the allowed rise.
    """
    plain = sit(loaded, exam)
    kept: list[Policy] = [Constant(1.0)] * layers
    scores = {"plain": score(plain, plain)}
    lowest = scores["plain"]["answer_loss"]
    moved = False
    for layer in range(layers):
        for value in values:
            trial = [*kept[:layer], make(value), *kept[layer + 1 :]]
            found = scores[f"layer {layer} at {value:g}"] = score(plain, sit(loaded, exam, PerLayer(tuple(trial))))
            if found["answer_loss"] < lowest and _admissible(found, scores["plain"], most_rise):
                kept, lowest, moved = trial, found["answer_loss"], True
    return Choice("search", PerLayer(tuple(kept)), scores) if moved else Choice(None, None, scores)


def score(plain: Sheet, found: Sheet) -> dict[str, float]:
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


def _admissible(found: dict[str, float], plain: dict[str, float], most_rise: float) -> bool:
    return found["rise_at_most"] <= MARGIN * most_rise and found["accuracy"] >= plain["accuracy"]


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
