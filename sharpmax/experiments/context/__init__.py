"""Context extension: what takes a frozen model beyond its trained context, and what a temperature per head adds.

Question: SmolLM2 was trained on 8,192 tokens. At 1, 2, 4 and 8 times that, which scaling of its rotary positions (none,
dynamic NTK, YaRN with and without its temperature, Self-Extend) and which temperature (nothing, log n, one beta, a
card, HeadScale, SEAL, LoRA) predict long documents and find what is asked for, and what does each cost on short text?

Every cell reads the same documents and questions, none of which a fit or a choice saw, so cells are compared item by
item. An arm is one entry of `plan.ARMS`. What was found: docs/results/context.md.

Cost: the whole table needs a GPU and some hours (estimated, not run). On two cores, at twice the context, a document
and cell takes some minutes. A killed run continues, and more cells can follow:
    sharpmax reproduce context
    sharpmax reproduce context --factors 2 --scalings none yarn --arms nothing --documents 2 --parts text
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sharpmax.experiments.context.plan import plan_for
from sharpmax.experiments.context.study import EXACT, Study
from sharpmax.experiments.context.summary import summarise
from sharpmax.flags import given, require_among
from sharpmax.hf.calibration.splits import text_of
from sharpmax.hf.finetune.judging import autocast
from sharpmax.hf.models.load_to_train import load_by_name
from sharpmax.hf.models.tiny_llama import TINY, train_tiny_llama
from sharpmax.runs.progress import stage
from sharpmax.runs.provenance import weights_of_folder
from sharpmax.runs.run_folder import RunFolder, run_name
from sharpmax.torch.device import device_or_best

PARTS = ("text", "short", "ask")
READ = 100_000  # characters that the tiny model is trained on


def run(
    out: str | Path = "runs",
    *,
    seed: int = 0,
    quick: bool = False,
    model: str | None = None,
    device: str | None = None,
    factors: Sequence[float] | None = None,
    scalings: Sequence[str] | None = None,
    arms: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    documents: int | None = None,
    prompts: int | None = None,
    steps: int | None = None,
    parts: Sequence[str] = PARTS,
    gather: bool = False,
) -> dict[str, Any]:
    """Compute every part of every cell that is not on disk yet, and gather all that are there; returns the metrics.

    With `gather`, nothing more is computed. Documents that are not in the cache and cannot be fetched are an OSError.
    """
    lists = given(factors=factors, scalings=scalings, arms=arms, tasks=tasks)
    several = {name: tuple(of) for name, of in lists.items()}
    plan = plan_for(quick=quick, model=model, **several, documents=documents, prompts=prompts, steps=steps)
    require_among("parts", parts, PARTS)
    device = device_or_best(device)
    # Which cells there are is not in the config: more may follow in the same folder.
    config = {
        "seed": seed,
        "model": plan.model,
        **weights_of_folder(plan.model),
        "block": plan.block,
        "windows": list(plan.windows),
    }
    config |= {"short_tokens": plan.short_tokens, "prompts": plan.prompts, "steps": plan.steps}
    folder = RunFolder.planned(out, "context", f"{run_name(plan.model)}{'-quick' if quick else ''}-seed{seed}", config)
    if plan.model == TINY:  # trained in seconds, on characters of Python's reference: nothing is fetched
        loaded = train_tiny_llama(text_of("fit")[:READ], seed=seed)
    else:
        loaded = load_by_name(plan.model, seed=seed, device=device)
    folder.begin()
    study = Study(plan, loaded, folder, seed=seed, products="bfloat16" if device.startswith("cuda") else EXACT)
    if not gather:
        study.must_be_alike()
    keys = [key for key in study.parts() if key[3].startswith(tuple(parts))]
    if not keys:
        raise ValueError(
            f"these options leave nothing to compute: {', '.join(parts)} of {', '.join(plan.scalings)} at "
            f"{', '.join(map(str, plan.factors))} times the context; at 1 there is no scaling but none"
        )
    with autocast(device), stage("context", len(keys)) as advance:
        for key in keys:
            if not gather or study.has(key):
                study.part(key)
            advance()
    if not (cells := study.kept()):
        raise ValueError(f"{folder.path} holds no cells yet; run it without --gather")
    metrics = summarise(cells, trained=study.trained, block=plan.block)
    folder.finish(metrics)
    from sharpmax.experiments.context.page import tell  # brings the report extra, which computing must not need

    tell(metrics, folder)
    return metrics
