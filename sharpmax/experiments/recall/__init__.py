"""Recall in a deep model: does sharpening that is trained in keep a Transformer right on inputs 290 times longer?

Claim (the paper's, for language models): adaptive temperature in every head, in training and in use, improves answers
on longer inputs than were trained on. Here four-layer Transformers learn to recall values by their keys among 4 to 14
pairs, at most 73 tokens, and are asked among up to 4,096, which is 16,401 tokens. Seeds, data, first weights and
questions are the same in every arm, so differences are paired over seeds.

Cost: `quick` takes a minute on two CPU cores and shows only that it runs; the whole needs a GPU. Expected figure:
`accuracy`, where the rules that were trained in stay above softmax.
"""

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from sharpmax.experiments.compare.arms import ARMS, arms_named
from sharpmax.experiments.compare.exam import examine
from sharpmax.experiments.compare.train import Hardware, Recipe, train_seeds
from sharpmax.experiments.recall.page import summarise, table, tell
from sharpmax.extras import extra
from sharpmax.flags import given, require_at_least
from sharpmax.models.transformer import Transformer
from sharpmax.runs.progress import report_as
from sharpmax.runs.run_folder import RunFolder, scale_name
from sharpmax.tasks.recall import Recall
from sharpmax.torch.device import must_run_on

with extra("torch"):
    from torch import Tensor

TASK = Recall()
DEFAULT_ARMS = ("softmax", "paper", "rising", "paper-inference")


class _Short(Recall):
    """Recall to train in seconds."""

    trained = (4, 6)


@dataclass(frozen=True)
class Scale:
    """How large a run is."""

    model: Transformer
    task: Recall
    recipe: Recipe
    seeds: int
    sizes: tuple[int, ...]
    sequences: int


FULL = Scale(Transformer(TASK.vocabulary), TASK, Recipe(), seeds=5, sizes=TASK.asked, sequences=128)
QUICK = Scale(Transformer(TASK.vocabulary, 2, 32, 4), _Short(), Recipe(40, 16), seeds=2, sizes=(6, 16, 64), sequences=8)


def run(
    out: str | Path = "runs",
    *,
    seed: int = 0,
    quick: bool = False,
    full: bool = False,
    arms: tuple[str, ...] | list[str] = DEFAULT_ARMS,
    seeds: int | None = None,
    steps: int | None = None,
    device: str | None = None,
    precision: str | None = None,
    compiled: bool | None = None,
) -> dict[str, Any]:
    """Train and ask the arms, draw, and write the page, in `out/recall/<name>/`; returns the metrics.

    An arm that is finished is told too, so arms can be added one by one. Softmax, to which the others are compared, is
    always among the arms.
    """
    if quick and full:
        raise ValueError("expected quick or full, got both")
    scale = QUICK if quick else FULL
    chosen = arms_named(arms)
    hardware = Hardware.of(device, precision, compiled)
    must_run_on(hardware.device)
    require_at_least(1, seeds=seeds, steps=steps)
    recipe = replace(scale.recipe, **given(steps=steps))
    scale = replace(scale, recipe=recipe, **given(seeds=seeds))
    config = {
        "seed": seed,
        "seeds": scale.seeds,
        "layers": scale.model.layers,
        "width": scale.model.width,
        "heads": scale.model.heads,
        "recipe": asdict(recipe),
        "trained": scale.task.trained,
        "sizes": scale.sizes,
        "sequences": scale.sequences,
        "precision": [hardware.training, hardware.asking],
    }
    folder = RunFolder.open(out, "recall", scale_name(quick, seed, seeds=seeds, steps=steps), config)
    there = {name for name in ARMS if all(folder.has(_step(name, size)) for size in scale.sizes)}
    chosen = {name: arm for name, arm in ARMS.items() if name in chosen or name in there}
    found = {name: _answers(name, scale, seed, folder, hardware) for name in chosen}
    metrics = {
        "parameters": scale.model.parameters,
        "trained_pairs": list(scale.task.trained),
        "sizes": list(scale.sizes),
        "arms": {name: {"label": arm.label, "mechanism": repr(arm.mechanism)} for name, arm in chosen.items()},
        "answers": found,
        "summary": summarise(found),
    }
    folder.finish(metrics)
    tell(metrics, folder)
    print(table(metrics))
    return metrics


def _answers(name: str, scale: Scale, seed: int, folder: RunFolder, hardware: Hardware) -> dict[str, Any]:
    """Return what the arm answers at every size, computing what is not in the folder."""
    arm = ARMS[name]
    model = replace(scale.model, mechanism=arm.mechanism)
    missing = [size for size in scale.sizes if not folder.has(_step(name, size))]
    if missing:
        report = report_as(f"recall, {name}")
        params = _trained(arm.weights_of or name, scale, seed, folder, hardware)
        for size in missing:
            start = perf_counter()
            ask = partial(examine, model, scale.task, params, size, scale.sequences, hardware=hardware)
            folder.once(_step(name, size), ask)
            report(f"asked at {size:,} pairs in {perf_counter() - start:.1f} s")
    return {str(size): folder.read(_step(name, size)) for size in scale.sizes}


def _trained(name: str, scale: Scale, seed: int, folder: RunFolder, hardware: Hardware) -> "Tensor":
    report = report_as(f"recall, {name}")
    return train_seeds(
        replace(scale.model, mechanism=ARMS[name].mechanism),
        scale.task,
        scale.recipe,
        list(range(seed, seed + scale.seeds)),
        folder.path / "training" / name,
        hardware=hardware,
        report=lambda step, loss, ms: report(
            f"step {step:,} of {scale.recipe.steps:,}, loss {loss:.4f}, {ms:.1f} ms per step"
        ),
    )


def _step(arm: str, pairs: int) -> str:
    return f"{arm}-{pairs}"
