"""What one run will do, settled before any work: model, recipe, arms, seeds, questions, and the gate."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sharpmax.core.policies import PAPER, Beyond
from sharpmax.experiments.compare.train import Recipe, must_be_rates
from sharpmax.flags import given, require_among, require_at_least
from sharpmax.models.mechanisms import LearnedSSMax, Mechanism, Sharpened
from sharpmax.models.transformer import PRECISIONS, Transformer
from sharpmax.runs.provenance import weights_of_folder
from sharpmax.runs.run_folder import run_name
from sharpmax.tasks.clrs_text.inputs import SUPPORTED
from sharpmax.tasks.clrs_text.tokens import NUMBERS, VOCABULARY

PLAIN = "plain"
FROM_NOTHING = "from-nothing"  # the model that is trained from nothing; others are language models by name


@dataclass(frozen=True)
class Arm:
    """One arm: its name for readers, its mechanism, and whether it is only asked with the plain arm's weights."""

    label: str
    mechanism: Mechanism
    at_inference: bool = False


ARMS = {
    PLAIN: Arm("plain softmax", Sharpened()),
    "paper": Arm("the paper's rule, trained in", Sharpened(PAPER)),
    "ssmax": Arm("SSMax, learned per head", LearnedSSMax()),
    "paper-inference": Arm("the paper's rule, at inference only", Sharpened(PAPER), True),
    # The contest's best (docs/results/recall.md, `beyond-1-start`). The exam sets what each algorithm was trained on.
    "beyond": Arm("Beyond the trained length, at inference only", Sharpened(Beyond(1.0)), True),
}
TRAINED_ARMS = tuple(name for name, arm in ARMS.items() if not arm.at_inference)
INFERENCE_ARMS = tuple(name for name, arm in ARMS.items() if arm.at_inference)


@dataclass(frozen=True)
class Gate:
    """What plain attention must reach on spare seeds before any arm is trained.

    Attributes:
        trained: exact answers at trained lengths, at least, as a share.
        low, high: exact answers at some unseen length, between these: there is something to gain and to lose.
        algorithms: how many must pass, at least.
    """

    trained: float = 0.95
    low: float = 0.10
    high: float = 0.90
    algorithms: int = 5


@dataclass(frozen=True)
class Study:
    """The settings of a run.

    Attributes:
        model: `FROM_NOTHING`, or a language model to fine-tune, which has layers, width and positions of its own.
        tokens: of a step, of a language model; the recipe's batch is then how many examples a step has, about.
        seeds: models per trained arm.
        spare: models of plain attention that the gate trains; learning rates are chosen on the first of their seeds.
        rates, tuning_steps: learning rates to choose from, and how long each is tried, the same for every arm.
        samples: questions of each algorithm, length and validation seed.
        lengths: the lengths to ask, of those that are published; all unless given.
        precision: of products in training; asking is in TF32, or in float32 as training is.
    """

    model: str = FROM_NOTHING
    algorithms: tuple[str, ...] = SUPPORTED
    layers: int = 8
    width: int = 512
    heads: int = 8
    positions: str = "sorted"
    recipe: Recipe = field(default_factory=lambda: Recipe(steps=2500, batch=128))
    seeds: Mapping[str, int] = field(default_factory=lambda: {PLAIN: 8, "paper": 8, "ssmax": 4})
    # Four of each, as many as train side by side: then a layer is compiled for one shape in all stages.
    spare: int = 4
    rates: tuple[float, ...] = (3e-4, 6e-4, 1e-3, 2e-3)
    tuning_steps: int = 625
    samples: int = 4
    lengths: tuple[int, ...] | None = None
    precision: str = "bf16"
    gate: Gate = field(default_factory=Gate)
    seed: int = 0
    tokens: int = 49152

    def transformer(self, arm: str) -> Transformer:
        """Return the model with the arm's mechanism."""
        return Transformer(
            VOCABULARY, self.layers, self.width, self.heads, self.positions, ARMS[arm].mechanism, numbers=NUMBERS
        )

    def seeds_of(self, arm: str) -> list[int]:
        """Return the seeds of a trained arm, or of the arm whose weights it is asked with."""
        return list(range(self.seed, self.seed + self.seeds[PLAIN if ARMS[arm].at_inference else arm]))

    @property
    def config(self) -> dict[str, Any]:
        """What decides the numbers: a run folder holds one of these. More seeds may follow."""
        fields = asdict(self)
        fields.pop("seeds")
        return fields | weights_of_folder(self.model)


QUICK = Study(
    algorithms=("activity_selector", "minimum", "quicksort"),
    layers=1,
    width=16,
    heads=2,
    recipe=Recipe(steps=12, batch=8),
    seeds={PLAIN: 3, "paper": 3, "ssmax": 2},
    spare=2,
    rates=(1e-3, 1e-2),
    tuning_steps=3,
    samples=1,
    lengths=(4, 6, 11, 12, 32),
    precision="float32",
    gate=Gate(trained=0.0, low=0.0, high=1.0, algorithms=1),
    tokens=1024,
)
"""A run that shows that everything works: its gate passes whatever comes."""

FINETUNED = Study(
    recipe=Recipe(steps=800, batch=330),
    seeds={PLAIN: 4, "paper": 4, "ssmax": 4},
    spare=2,
    rates=(3e-4,),
    tuning_steps=200,
    samples=2,
)
"""What a language model takes: 39 million tokens, each example about once, at the rate of the older experiment."""


def plan(
    *,
    quick: bool,
    seed: int = 0,
    model: str | None = None,
    tokens: int | None = None,
    algorithms: Iterable[str] = (),
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    positions: str | None = None,
    seeds: int | None = None,
    steps: int | None = None,
    batch: int | None = None,
    rates: Iterable[float] = (),
    samples: int | None = None,
    precision: str | None = None,
) -> tuple[str, Study]:
    """Return the name of a run's folder and its settings; options that are None are the scale's."""
    model = model or FROM_NOTHING
    study = QUICK if quick else Study() if model == FROM_NOTHING else FINETUNED
    shape = {"layers": layers, "width": width, "heads": heads, "positions": positions, "precision": precision}
    if model == FROM_NOTHING and tokens is not None:
        raise ValueError("tokens are of a language model's steps; a model from nothing has --batch")
    if model != FROM_NOTHING and (given_shape := given(**shape)):
        raise ValueError(f"{model} has its own {', '.join(given_shape)}; those are of a model from nothing")
    numbers = {"layers": layers, "width": width, "heads": heads, "samples": samples, "tokens": tokens}
    require_at_least(1, **numbers, steps=steps, batch=batch, seeds=seeds)
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(f"expected a precision among {', '.join(PRECISIONS)}, got {precision!r}")
    algorithms, rates = tuple(algorithms), tuple(rates)
    require_among("algorithms", algorithms, SUPPORTED)
    must_be_rates(rates)
    own = {"positions": positions, "precision": precision, "rates": rates or None}
    changes = given(algorithms=algorithms or None, **numbers, **own)
    of_recipe = given(steps=steps, batch=batch)
    study = replace(study, model=model, recipe=replace(study.recipe, **of_recipe), seed=seed, **changes)
    if steps is not None:
        study = replace(study, tuning_steps=max(1, steps // 4))
    if seeds is not None:
        study = replace(study, seeds=dict.fromkeys(study.seeds, seeds))
    study.transformer(PLAIN)  # refuses what does not fit
    said = [f"{name}{_said(value)}" for name, value in (changes | of_recipe).items()]
    of_model = [] if model == FROM_NOTHING else [run_name(model)]
    return "-".join([*of_model, "quick" if quick else "full", *([f"seed{seed}"] if seed else []), *said]), study


def _said(value: Any) -> str:
    if not isinstance(value, tuple):
        return str(value)
    return "+".join(f"{v:g}" if isinstance(v, float) else str(v) for v in value)
