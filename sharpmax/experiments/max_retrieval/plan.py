"""What one run will do, settled before any work: the recipe, how many seeds, which sizes, how many sets of each.

A run is *full*, as committed under `results/`; or *quick*, for tests; or neither, to see it happen.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from sharpmax.experiments.max_retrieval.evaluate import blocks_of
from sharpmax.experiments.max_retrieval.recipes import RECIPES, Recipe
from sharpmax.flags import given, require_at_least

SMALLEST, FEW_ITEMS = 16, 1024


@dataclass(frozen=True)
class Scale:
    """How much of the full run is made.

    Attributes:
        step_share: of the recipe's steps.
        sets: for each size and seed, up to 1,024 items, and above.
        largest: the largest size evaluated, where the recipe's is larger.
        doublings: from one size to the next.
    """

    seeds: int
    step_share: float
    sets: tuple[int, int]
    largest: int = 2**20
    doublings: int = 1


SCALES = {
    "quick": Scale(seeds=2, step_share=0.00512, sets=(256, 64), largest=1024, doublings=3),
    "default": Scale(seeds=2, step_share=0.2, sets=(1024, 128)),
    "full": Scale(seeds=10, step_share=1.0, sets=(4096, 1024)),
}


@dataclass(frozen=True)
class Plan:
    """One run; `name` is its folder's."""

    name: str
    scale: str
    recipe: Recipe
    seed: int
    seeds: int
    sizes: tuple[int, ...]
    sets: tuple[int, int]

    def sets_of(self, n: int) -> int:
        """Return how many sets of n items each seed answers."""
        return self.sets[n > FEW_ITEMS]

    @property
    def config(self) -> dict[str, Any]:
        """What decides the numbers: a run folder holds one of these."""
        return {key: value for key, value in asdict(self).items() if key not in ("name", "scale")}


def plan_run(
    *,
    seed: int,
    quick: bool,
    full: bool = False,
    recipe: str | Recipe = "paper",
    seeds: int | None = None,
    steps: int | None = None,
    largest: int | None = None,
    rotated: bool | None = None,
) -> Plan:
    """Settle a run from its options; those that are None are the scale's or the recipe's.

    A recipe may be one of your own: `dataclasses.replace(PAPER_RECIPE, name=…, …)`.
    """
    if quick and full:
        raise ValueError("expected at most one of quick and full, got both")
    if isinstance(recipe, str) and recipe not in RECIPES:
        raise ValueError(f"unknown recipe {recipe!r}; there are: {', '.join(RECIPES)}")
    require_at_least(1, seeds=seeds, steps=steps)
    require_at_least(SMALLEST, largest=largest)
    kind = "quick" if quick else "full" if full else "default"
    scale, base = SCALES[kind], RECIPES[recipe] if isinstance(recipe, str) else recipe
    chosen = replace(
        base,
        steps=steps or round(scale.step_share * base.steps),
        largest=largest or min(base.largest, scale.largest),
        rotated=base.rotated if rotated is None else rotated,
    )
    changes = [f"{name}{value}" for name, value in given(seeds=seeds, steps=steps, largest=largest).items()]
    changes += [] if rotated is None else ["rotated" if rotated else "unrotated"]
    parts = [base.name, *([] if full else [kind]), *([f"seed{seed}"] if seed else []), *changes]
    return Plan(
        name="-".join(parts),
        scale="changed" if changes or base != RECIPES.get(base.name) else kind,
        recipe=chosen,
        seed=seed,
        seeds=seeds or scale.seeds,
        sizes=_sizes(chosen.largest, scale.doublings),
        sets=scale.sets,
    )


def _sizes(largest: int, doublings: int) -> tuple[int, ...]:
    """Return 16, 32, … up to the largest, which is always among them."""
    blocks_of(largest)
    sizes = [SMALLEST]
    while sizes[-1] << doublings <= largest:
        sizes.append(sizes[-1] << doublings)
    return tuple(sizes if sizes[-1] == largest else [*sizes, largest])
