"""CLRS-Text by its published protocol: does adaptive temperature that is trained in improve most algorithms?

Claim (arXiv 2410.01104): a language model with adaptive temperature in every head, in training and in use, is ahead of
plain attention on nearly all algorithms of CLRS-Text, most beyond the trained lengths. Here Transformers learn twelve
of the algorithms from nothing, on the published training lengths and fresh samples. They are asked at every published
length: unseen ones within the trained range (interpolation) and longer ones (extrapolation).

In stages, each of which keeps what it computed:

    rates   try learning rates on a spare seed, the same budget for every arm
    gate    train plain attention on spare seeds: is there something to compare, and would the design detect it?
    arms    train and ask every arm and seed; only if the gate is met

Cost: `quick` under two minutes on two cores and shows only that it runs; the whole needs a GPU, half a minute per arm
and seed on an H200 (estimated). Expected figure: `algorithms`, exact answers against length, one panel per algorithm.
"""

from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

from sharpmax.experiments.clrs_protocol.gate import judge_gate
from sharpmax.experiments.clrs_protocol.study import FROM_NOTHING, TRAINED_ARMS, Study, plan
from sharpmax.experiments.clrs_protocol.summary import summarise
from sharpmax.experiments.clrs_protocol.work import Work
from sharpmax.experiments.compare.train import Hardware
from sharpmax.flags import require_among, require_at_least
from sharpmax.runs.progress import report_as
from sharpmax.runs.run_folder import RunFolder
from sharpmax.torch.device import must_run_on

STAGES = ("rates", "gate", "arms")


def run(
    out: str | Path = "runs",
    *,
    seed: int = 0,
    quick: bool = False,
    only: Iterable[str] = (),
    arms: Iterable[str] = (),
    together: int | None = None,
    despite_gate: bool = False,
    gather: bool = False,
    device: str | None = None,
    compiled: bool | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Run the stages, draw, and write the page, in `out/clrs-protocol/<name>/`; returns the metrics.

    Stages and arms can be run one by one, on different machines. With everything there, the same command draws again
    and computes nothing. A gate that is not met is a ValueError.

    `changes` go to `study.plan`. With `only` there is no page, so that a GPU does not wait for it. Rules at inference
    are asked with the plain arm's weights.
    """
    name, study = plan(quick=quick, seed=seed, **changes)
    only = tuple(only)
    stages, chosen = only or STAGES, tuple(arms) or TRAINED_ARMS
    require_among("stages", stages, STAGES)
    require_among("trained arms", chosen, TRAINED_ARMS)
    require_at_least(1, together=together)
    if together is not None and study.model != FROM_NOTHING:
        raise ValueError(f"together is of a model from nothing: {study.model} trains one seed at a time")
    if gather and only:
        raise ValueError(f"expected gather or only, got both: gather computes nothing, not {', '.join(only)} either")
    if device is not None and not gather:
        must_run_on(device)
    folder = RunFolder.planned(out, "clrs-protocol", name, study.config)
    if gather and not folder.steps:
        raise ValueError(f"{folder.path} holds nothing to gather yet; run it without --gather")
    folder.begin()
    if not gather:
        work = _work(study, folder, Hardware.of(device, study.precision, compiled), together or 4)
        told, began = report_as("clrs-protocol"), perf_counter()
        if "rates" in stages:
            for arm in chosen:
                work.rate_of(arm)
        if "gate" in stages:
            work.train_spare()
            told(judge_gate(study, folder)["said"])
        if "arms" in stages:
            gate = judge_gate(study, folder)
            if not gate["met"] and not despite_gate:
                raise ValueError(
                    f"the gate is not met, so the arms are not trained: {gate['said']}; change the recipe (--steps, "
                    "--layers, --width, --batch, --rates), or train them all the same with --despite-gate"
                )
            for arm in chosen:
                work.train_arm(arm)
        told(f"computed in {perf_counter() - began:.0f} s")
        if only:
            return {"folder": str(folder.path)}
    from sharpmax.experiments.clrs_protocol.page import tell  # brings the report extra, which training must not need

    metrics = summarise(study, folder)
    folder.finish(metrics)
    tell(metrics, study, folder)
    return metrics


def _work(study: Study, folder: RunFolder, hardware: Hardware, together: int) -> Work:
    """Return what trains the study's model; a language model needs the hf extra, and trains one seed at a time."""
    if study.model == FROM_NOTHING:
        from sharpmax.experiments.clrs_protocol.from_nothing import FromNothing

        return FromNothing(study, folder, hardware, together)
    from sharpmax.experiments.clrs_protocol.language_model import LanguageModel

    return LanguageModel(study, folder, hardware, 1)
