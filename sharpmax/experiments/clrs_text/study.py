"""What one run of the experiment will do, settled before any work: model, data, recipe, arms and seeds.

A run is the *full* one, as committed under `results/`, or *quick*, for tests: a small model, few algorithms, real data.
"""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sharpmax.flags import given, require_among, require_at_least
from sharpmax.hf.finetune.train import Recipe
from sharpmax.runs.provenance import weights_of_folder
from sharpmax.runs.run_folder import run_name
from sharpmax.tasks.clrs_text.corpus import Plan

ARMS = {"plain": "none", "paper": "paper", "ssmax": "ssmax", "learn": "learn"}
"""Each arm, and the policy it is trained and judged with."""
LABELS = {
    "plain": "plain softmax",
    "paper": "adaptive temperature (the paper's)",
    "ssmax": "SSMax, learned per head",
    "learn": "learned per head (a, b, c)",
    "plain+paper": "trained plain, sharpened at inference only",
}


@dataclass(frozen=True)
class Study:
    """One run; `name` is its folder's.

    Attributes:
        recipe: of every arm; its seed is replaced by each of `seeds`, which decides the order of the data.
        generations: how many test examples are also answered by real generation, to hold the two against each other.
    """

    name: str
    model: str
    corpus: Plan
    recipe: Recipe
    arms: tuple[str, ...] = tuple(ARMS)
    seeds: tuple[int, ...] = (0, 1)
    generations: int = 6

    @property
    def config(self) -> dict[str, Any]:
        """What decides the numbers: a run folder holds one of these."""
        fields = asdict(self)
        fields.pop("name")
        fields["recipe"] = {k: v for k, v in fields["recipe"].items() if k not in ("save_every", "log_every", "seed")}
        return {"seed": self.seeds[0], **fields, **weights_of_folder(self.model)}


@dataclass(frozen=True)
class Scale:
    """What a scale takes where nothing else is said."""

    model: str
    corpus: Plan = field(default_factory=Plan)
    recipe: Recipe = field(default_factory=Recipe)
    generations: int = 6


SCALES = {
    # A row so long keeps a GPU busy while the next kernels are launched, and takes 60 GB. The learning rate is the best
    # of results/clrs-text/learning-rates.
    "full": Scale("smollm2", recipe=Recipe(steps=350, tokens=49152, learning_rate=3e-4)),
    "quick": Scale(
        "gemma-tiny",
        Plan(
            ("minimum", "segments_intersect", "task_scheduling"),
            train_lengths=(4, 5, 6, 7, 8),
            test_lengths=(6, 8, 12, 16),
            train_examples=1500,
            test_samples=4,
        ),
        Recipe(steps=200, tokens=1024, learning_rate=3e-3, save_every=0, log_every=100),
    ),
}


def plan_study(
    *,
    seed: int,
    quick: bool,
    model: str | None = None,
    arms: tuple[str, ...] | None = None,
    seeds: int | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    at_once: int | None = None,
    compile: bool | None = None,
    learning_rate: float | None = None,
) -> Study:
    """Settle a run from its options; those that are None are the scale's."""
    chosen = tuple(dict.fromkeys(arms or ARMS))
    require_among("arms", chosen, ARMS)
    if "plain" not in chosen:
        raise ValueError("expected the arm plain among the arms: the others are compared with it")
    require_at_least(1, seeds=seeds)
    if seed + (seeds or 2) > 2**32:
        raise ValueError(f"expected seeds below {2**32}, got {seed} and {(seeds or 2) - 1} more")
    scale = SCALES["quick" if quick else "full"]
    options = given(steps=steps, tokens=tokens, at_once=at_once, compile=compile, learning_rate=learning_rate)
    recipe = replace(scale.recipe, **options)
    model = model or scale.model
    short = {"at_once": "at-once", "learning_rate": "rate"}
    changed = [short.get(name, name) + ("" if value is True else str(value)) for name, value in options.items()]
    changed += [f"seed{seed}"] if seed else []
    changed += ["-".join(chosen)] if arms else []
    name = "-".join([run_name(model), *(["quick"] if quick else []), *changed])
    return Study(name, model, scale.corpus, recipe, chosen, tuple(range(seed, seed + (seeds or 2))), scale.generations)
