"""Recall in a deep model: does sharpening that is trained in keep a Transformer right on inputs 290 times longer?

Claim (the paper's, for language models): adaptive temperature in every head, in training and in use, improves answers
on longer inputs than were trained on. Here four-layer Transformers learn to recall values by their keys among 4 to 14
pairs, at most 73 tokens, and are asked among up to 4,096, which is 16,401 tokens. Seeds, data, first weights and
questions are the same in every arm, so differences are paired over seeds.

Cost: some three minutes per trained arm and five seeds on an H200. `quick` takes a minute on two CPU cores and shows
only that it runs. Expected figure: `accuracy`, where the rules that were trained in stay above softmax.
"""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sharpmax.core.cards import policy_to_json
from sharpmax.experiments.recall.arms import ARMS, arms_named
from sharpmax.experiments.recall.exam import examine
from sharpmax.experiments.recall.page import summarise, tell
from sharpmax.experiments.recall.train import Recipe, train_seeds
from sharpmax.extras import extra
from sharpmax.models.transformer import Params, Transformer
from sharpmax.runs.progress import report_as
from sharpmax.runs.run_folder import RunFolder
from sharpmax.tasks.recall import VOCABULARY

with extra("torch"):
    import torch


@dataclass(frozen=True)
class Scale:
    """How large a run is."""

    model: Transformer
    recipe: Recipe
    seeds: int
    sizes: tuple[int, ...]
    sequences: int


FULL = Scale(
    Transformer(VOCABULARY), Recipe(5000, 256, (4, 14)), seeds=5, sizes=(14, 64, 256, 1024, 2048, 4096), sequences=128
)
QUICK = Scale(Transformer(VOCABULARY, 2, 32, 4), Recipe(40, 16, (4, 6)), seeds=2, sizes=(6, 16, 64), sequences=8)


def run(
    out: str | Path = "runs",
    *,
    seed: int = 0,
    quick: bool = False,
    arms: tuple[str, ...] | list[str] = (),
    seeds: int | None = None,
    steps: int | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Train and ask the arms, draw, and write the page, in `out/recall/<name>/`; returns the metrics.

    Args:
        out: root of the run folders; a run found there is continued.
        seed: the first of the seeds.
        arms: by name; none: all. Softmax, to which the others are compared, is always among them.
        seeds, steps: how many models per arm, and how long they train, instead of the scale's.

    Raises:
        ValueError: options that do not fit, or a run folder that holds another config.
    """
    scale = QUICK if quick else FULL
    chosen = arms_named(tuple(arms))
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    count = scale.seeds if seeds is None else seeds
    recipe = scale.recipe if steps is None else Recipe(**{**asdict(scale.recipe), "steps": steps})
    for name, number in (("seeds", count), ("steps", recipe.steps)):
        if number < 1:
            raise ValueError(f"expected {name} of at least 1, got {number}")
    trained_seeds = [seed + i for i in range(count)]
    config = {
        "seed": seed,
        "seeds": trained_seeds,
        "model": asdict(scale.model),
        "recipe": asdict(recipe),
        "sizes": scale.sizes,
        "sequences": scale.sequences,
        "policies": {name: policy_to_json(arm.policy) for name, arm in ARMS.items()},
    }
    name = f"{'quick' if quick else 'full'}-seed{seed}" + ("" if steps is None else f"-steps{steps}")
    folder = RunFolder.open(out, "recall", name, config, grows="seeds")
    found: dict[str, Any] = {}
    for arm_name, arm in chosen.items():
        asked = [pairs for pairs in scale.sizes if not folder.has(_step(arm_name, pairs))]
        params = _trained(scale, recipe, arm.weights_of, trained_seeds, folder, device) if asked else {}
        for pairs in asked:
            ask = partial(examine, scale.model, params, arm.policy, pairs, scale.sequences, device=device)
            folder.once(_step(arm_name, pairs), ask)
        found[arm_name] = {str(pairs): folder.read(_step(arm_name, pairs)) for pairs in scale.sizes}
    metrics = {
        "parameters": scale.model.parameters,
        "trained_pairs": list(recipe.pairs),
        "sizes": list(scale.sizes),
        "answers": found,
        "summary": summarise(found),
    }
    folder.finish(metrics)
    tell(metrics, folder)
    return metrics


def _trained(scale: Scale, recipe: Recipe, arm: str, seeds: list[int], folder: RunFolder, device: str) -> Params:
    report = report_as(f"recall, {arm}")
    return train_seeds(
        scale.model,
        recipe,
        ARMS[arm].policy,
        seeds,
        folder.path / "training" / arm,
        device=device,
        report=lambda step, loss: report(f"step {step:,} of {recipe.steps:,}, loss {loss:.4f}"),
    )


def _step(arm: str, pairs: int) -> str:
    return f"{arm}-{pairs}"
