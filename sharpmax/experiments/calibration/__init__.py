"""Calibration: what a learned policy is worth, and where it is not.

Claim (ours): 810 numbers, fitted on lookups of at most 32 entries behind up to 12,000 characters of text, take a frozen
SmolLM2 to 75 % at 128 entries and 60 % at 256, for at most 0.5 % of perplexity. Perplexity is judged at 256, 1,024 and
4,096 tokens of three kinds of text (prose on Python, source code, NumPy's docstrings), in parts that no fit, choice or
earlier report saw. The prose to fit on is Python's reference; to report on it is its enhancement proposals.

Beside it: the same card on other wordings and tasks, a fit on a mixture, the paper's rule, one global beta, b alone, a
LoRA at equal cost, five seeds, and accuracy against perplexity as the price of text grows. What was found:
docs/results/calibration.md.

Cost: some ten minutes on an H200, in bfloat16. A killed run continues:
    git clone https://github.com/python/peps && git -C peps checkout ba4deeb
    sharpmax reproduce calibration --proposals peps/peps
    sharpmax reproduce calibration --proposals peps/peps --only seed0 seed1     (a part of it)

A card beside its rivals (HeadScale, SEAL, a bias of the position, a LoRA, combinations; rivals.py), in a folder of its
own. The time of the whole was never measured:
    sharpmax reproduce calibration --arms all --seeds 5 --device cuda --proposals peps/peps
    sharpmax reproduce calibration --arms all --seeds 1 --pilot --device cpu
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sharpmax import defaults
from sharpmax.experiments.calibration.plan import plan_for
from sharpmax.experiments.calibration.rivals import Rivals, fits_of, names_of
from sharpmax.experiments.calibration.study import Study
from sharpmax.extras import extra
from sharpmax.flags import require_among, require_at_least
from sharpmax.hf.calibration.choose import best_of
from sharpmax.hf.calibration.descent import Recipe
from sharpmax.hf.calibration.rivals import Rival
from sharpmax.hf.finetune.judging import autocast
from sharpmax.hf.models.load_to_train import load_by_name
from sharpmax.runs.provenance import weights_of_folder
from sharpmax.runs.run_folder import RunFolder, run_name
from sharpmax.torch.device import device_or_best

with extra("hf"):
    import torch


def run(
    out: str | Path = "runs",
    *,
    seed: int = 0,
    quick: bool = False,
    model: str | None = None,
    device: str | None = None,
    prompts: int | None = None,
    steps: int | None = None,
    questions: int | None = None,
    text_tokens: int | None = None,
    together: int = 65536,
    proposals: str | Path | None = None,
    only: Sequence[str] = (),
    gather: bool = False,
    arms: Sequence[str] = (),
    seeds: int | None = None,
    pilot: bool = False,
) -> dict[str, Any]:
    """Compute every step that is not on disk yet (or only the named ones), and gather them; returns the metrics.

    With `arms` it is not the study that is computed, but a card beside its rivals, in a folder of their own: of `seeds`
    fits each, and with `pilot` at a budget for two cores.

    With `only`, nothing is gathered. With `gather`, nothing more is judged: what is on disk makes the whole, and
    `absent` names what it lacks.
    """
    if seed != 0:
        raise ValueError(f"expected seed 0, because the study has five seeds of its own, got {seed}")
    counts = {"prompts": prompts, "steps": steps, "questions": questions, "text_tokens": text_tokens}
    require_at_least(1, **counts, together=together)
    changes: dict[str, Any] = {"model": model, **counts}
    device = device_or_best(device)
    if arms:
        if only or gather:
            raise ValueError("expected arms alone, got only or gather beside them: an arm is judged where it is absent")
        if quick and pilot:
            raise ValueError("expected at most one of quick and pilot, got both")
        fits = fits_of(defaults.RIVAL_SEEDS if seeds is None else seeds)
        plan, arms = plan_for(quick=quick, pilot=pilot, fits=fits, **changes), names_of(arms)
    else:
        if pilot or seeds is not None:
            raise ValueError("pilot and seeds are of rivals: name them too (--arms all)")
        plan = plan_for(quick=quick, **changes)
        require_among("steps", only, plan.names)
    config = {"seed": 0, "model": plan.model, **weights_of_folder(plan.model), "prompts": plan.prompts}
    config |= {"steps": plan.steps, "questions": plan.questions, "text_tokens": plan.text_tokens}
    config |= {"proposals": proposals is not None}
    name = run_name(plan.model) + ("-quick" if quick else "-pilot" if pilot else "")
    folder = RunFolder.planned(out, "calibration-rivals" if arms else "calibration-study", name, config)
    loaded = load_by_name(plan.model, seed=0, device=device)
    for arm in arms:
        Rival.start(loaded, arm, Recipe())  # what the model cannot have is refused before hours of fitting
    folder.begin()
    torch.backends.cuda.matmul.allow_tf32 = True  # of the logits over the vocabulary, which stay float32
    if arms:
        rivals = Rivals(plan, loaded, folder, together=together, proposals=proposals)
        with autocast(device):
            metrics = {"arms": rivals.run(arms), "seeds": plan.seeds}
        folder.finish(metrics)
        from sharpmax.experiments.calibration.page import tell_rivals  # brings the report extra

        tell_rivals(metrics, folder)
        return metrics
    study, names = Study(plan, loaded, folder, together=together, proposals=proposals), plan.names
    absent = [name for name in names if gather and not study.judged(name)]
    if gather and (lacking := sorted(set(absent) & set(plan.seeds))):
        raise ValueError(f"{folder.path} has no judgement of {', '.join(lacking)} to gather")
    with autocast(device):
        found = {name: study.step(name) for name in names if name not in absent and (not only or name in only)}
        metrics = _gathered(study, found, whole=not only)
    if absent:
        metrics["absent"] = absent
    folder.finish(metrics)
    from sharpmax.experiments.calibration.page import tell  # brings the report extra, which computing must not need

    tell(metrics, folder, whole=not only)
    return metrics


def _gathered(study: Study, found: dict[str, Any], *, whole: bool) -> dict[str, Any]:
    """Return the metrics: of the whole also the best LoRA, all seeds as one, and the card's seed."""
    loras = {name: found[name]["score"] for name in study.plan.loras if name in found}
    for name in loras:
        found[f"transfer-{name}"] = found[name].pop("transfer")
    if whole:
        if loras:
            best = best_of(loras, most_rise=study.plan.most_rise)
            found |= {"lora": found.pop(best), "transfer-lora": found.pop(f"transfer-{best}")}
        found["seeds"] = study.pooled(found)
    # Each item's record stays in its step's file; the metrics are what is read.
    metrics: dict[str, Any] = {
        name: {key: value for key, value in step.items() if key != "records"} for name, step in found.items()
    }
    return metrics | ({"card": study.write_card()} if whole else {})
