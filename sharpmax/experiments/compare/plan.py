"""What is compared: cells of a mechanism, a task and a model, and the settings that all cells of a run share."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any

from sharpmax.experiments.compare.arms import SOFTMAX, arm_named, source_of_arm
from sharpmax.experiments.compare.train import Hardware, Recipe, must_be_rates
from sharpmax.flags import given, require_among, require_at_least
from sharpmax.models.transformer import POSITIONS, Transformer
from sharpmax.tasks.catalogue import TASKS

MODELS = {
    "0.3M": Transformer(257, layers=4, width=64, heads=2),
    "1M": Transformer(257, layers=4, width=128, heads=4),
    "3M": Transformer(257, layers=4, width=256, heads=8),
    "10M": Transformer(257, layers=6, width=384, heads=12),
    "30M": Transformer(257, layers=9, width=512, heads=16),
    "tiny": Transformer(257, layers=1, width=16, heads=2),
}
"""Models by name: heads are 32 wide, the name is the number of parameters of recall; `tiny` is for trials."""

ARMS_BY_DEFAULT = (
    SOFTMAX,
    "paper",
    "rising",
    "ssmax-fixed",
    "entmax",
    "asentmax",
    "sparsemax",
    "sigmoid",
    "stick-breaking",
    "off-by-one",
    "linear",
    "differential",
    "selective",
    "top-k",
    "hierarchical",
)


@dataclass(frozen=True)
class Study:
    """The settings of a run; what is not here belongs to a cell."""

    seed: int = 0
    seeds: int = 5
    recipe: Recipe = field(default_factory=lambda: Recipe(steps=3000))
    rates: tuple[float, ...] = (1e-3, 3e-3)
    """Learning rates to choose from for each cell; a single one is taken as it is."""
    tuning_steps: int = 1500
    """Steps of each rate, on a spare seed."""
    sequences: int = 128
    """Most sequences per size; long ones are fewer, so that all together have at most `tokens`."""
    tokens: int = 2**18
    longest: int = 2**15
    """Tokens of the longest sequence to ask."""
    positions: str = "half"
    hardware: Hardware = field(default_factory=Hardware)
    largest: int | None = None
    """The largest size to ask at; None asks at all that `longest` allows."""
    quick: bool = False
    """Whether the other numbers began as those of `QUICK`."""

    @property
    def config(self) -> dict[str, Any]:
        """What decides the numbers of a run. Where it is computed changes them by rounding: precision counts."""
        settings = asdict(self) | {"hardware": [self.hardware.training, self.hardware.asking]}
        settings.pop("quick")  # the numbers are there
        if self.largest is None:
            settings.pop("largest")
        return settings

    def sequences_of(self, length: int) -> int:
        """Return how many sequences of this length are asked; at least 16, or all where there are fewer."""
        return min(self.sequences, max(16, self.tokens // length))


QUICK = Study(
    seeds=3,
    recipe=Recipe(steps=20, batch=8),
    rates=(1e-3, 1e-2),
    tuning_steps=5,
    sequences=8,
    tokens=2**12,
    longest=300,
    quick=True,
)


@dataclass(frozen=True)
class Cell:
    """One mechanism on one task in one model, all seeds of it."""

    task: str
    arm: str
    model: str
    source: str | None = None
    """What tells the code of an arm from outside."""

    @property
    def name(self) -> str:
        """A plain file name; of a mechanism from outside it holds what tells its code."""
        arm = self.arm if self.source is None else f"{self.arm}-{self.source}"
        return "_".join(part.replace(":", ".").replace("/", ".") for part in (self.task, arm, self.model))

    @property
    def trained(self) -> "Cell":
        """The cell whose weights are asked: itself, unless its arm is one that is only asked with."""
        other = arm_named(self.arm).weights_of
        return self if other is None else replace(self, arm=other, source=source_of_arm(other))

    def transformer(self, positions: str) -> Transformer:
        """Return the model with the arm's mechanism."""
        vocabulary, mechanism = TASKS[self.task].vocabulary, arm_named(self.arm).mechanism
        return replace(MODELS[self.model], vocabulary=vocabulary, positions=positions, mechanism=mechanism)

    def sizes(self, longest: int, largest: int | None = None) -> tuple[int, ...]:
        """Return the sizes to ask at: the first of the task's, and those that are neither too long nor too large."""
        first, *others = TASKS[self.task].asked
        within = [n for n in others if TASKS[self.task].length_of(n) <= longest and (largest is None or n <= largest)]
        return (first, *within)

    def command(self, study: Study) -> str:
        """Return the command that computes this cell, and what it is compared to."""
        arms = SOFTMAX if self.arm == SOFTMAX else f"{SOFTMAX} {self.arm}"
        rates = " ".join(map(str, study.rates))
        scale = " --quick" if study.quick else ""
        largest = "" if study.largest is None else f" --largest {study.largest}"
        return (
            f"sharpmax compare{scale} --tasks {self.task} --arms {arms} --models {self.model} --seed {study.seed} "
            f"--seeds {study.seeds} --steps {study.recipe.steps} --batch {study.recipe.batch} --rates {rates} "
            f"--positions {study.positions} --precision {study.hardware.training}{largest}"
        )


def cells_of(tasks: Iterable[str], arms: Iterable[str], models: Iterable[str]) -> Iterator[Cell]:
    """Yield every cell, by mechanism: so that a layer is compiled once for all tasks. Softmax is always among them."""
    tasks, arms, models = (list(dict.fromkeys(names)) for names in (tasks, (SOFTMAX, *arms), models))
    require_among("tasks", tasks, TASKS)
    require_among("models", models, MODELS)
    sources = {arm: source_of_arm(arm) for arm in arms}
    for model, arm, task in product(models, arms, tasks):
        yield Cell(task, arm, model, sources[arm])


def study_of(
    *,
    quick: bool,
    seed: int,
    seeds: int | None,
    steps: int | None,
    batch: int | None,
    rates: Iterable[float],
    positions: str,
    hardware: Hardware,
    largest: int | None = None,
) -> Study:
    """Return the settings, with what was asked for instead of the scale's own."""
    study = QUICK if quick else Study()
    require_at_least(1, seeds=seeds, steps=steps, batch=batch, largest=largest)
    seeds = study.seeds if seeds is None else seeds
    if not 0 <= seed <= 2**32 - seeds:  # a CPU's generator keeps 32 bits: beyond, seeds are those from 0 on again
        raise ValueError(f"expected seeds from 0 to {2**32 - 1}, got {seed}" + f" and {seeds - 1} more" * (seeds > 1))
    require_among("positions", [positions], POSITIONS)
    rates = tuple(rates) or study.rates
    must_be_rates(rates)
    recipe = replace(study.recipe, **given(steps=steps, batch=batch))
    tuning = min(study.tuning_steps, max(1, recipe.steps // 2))
    study = replace(study, seed=seed, seeds=seeds, positions=positions, hardware=hardware, largest=largest)
    return replace(study, recipe=recipe, rates=rates, tuning_steps=tuning)
