"""CLRS-Text: thirty algorithms learned on short inputs, asked on longer ones, with and without sharp attention.

Claim (arXiv 2410.01104): Gemma 2B fine-tuned with adaptive temperature in every head, in training and inference, is
ahead of plain attention on nearly all of the thirty algorithms, most beyond the trained sizes; at inference only it
does not work. Ours: to see whether that holds, beside two rules that learn, SSMax and three numbers per head.

Cost: `quick` under two minutes on two cores; the full run, SmolLM2 with two seeds of four arms, minutes an arm and seed
on an H200. Expected figure: `length`, exact answers against the length of the input.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from sharpmax.experiments.clrs_text.arm import opened, run_arm, test_set
from sharpmax.experiments.clrs_text.rates import try_rates
from sharpmax.experiments.clrs_text.study import Study, plan_study
from sharpmax.experiments.clrs_text.summary import Records, summarise
from sharpmax.extras import extra
from sharpmax.flags import require_among, require_at_least
from sharpmax.runs.progress import report_as
from sharpmax.runs.run_folder import RunFolder
from sharpmax.tasks.clrs_text.corpus import corpus
from sharpmax.torch.device import device_or_best

with extra("hf"):
    import torch

STEPS = ("budget", "agreement")
"""What can be run beside the experiment: what each algorithm gets of the training; one pass against decoding."""


def run(
    out: str | Path = "runs",
    *,
    seed: int = 0,
    quick: bool = False,
    rates: tuple[float, ...] = (),
    only: tuple[str, ...] = (),
    questions: int | None = None,
    parallel: int = 1,
    save_every: int | None = None,
    device: str | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Train and judge every arm and seed, draw, and write the page, in `out/clrs-text/<name>/`; returns the metrics.

    An unfinished arm goes on from its last checkpoint. A finished run asked for more `seeds` trains those alone.

    `changes` go to `plan_study`. `rates` and `only` run something else instead of the arms, each in a folder and with a
    page of its own.
    """
    study = plan_study(seed=seed, quick=quick, **changes)
    require_at_least(1, parallel=parallel)
    require_among("steps", only, STEPS)
    if questions is not None and "agreement" not in only:
        raise ValueError("questions are asked by the step agreement: --only agreement")
    if only and rates:
        raise ValueError("expected rates or only, got both: rates are tried alone")
    if only:
        return {step: _step(step, study, out, questions) for step in only}
    device = device_or_best(device)
    if rates:
        return try_rates(study, rates, out, device=device)
    folder = train(study, out, parallel=parallel, save_every=save_every, device=device)
    from sharpmax.experiments.clrs_text.page import tell  # brings the report extra, which training must not need

    records = [folder.read(f"{arm}-seed{s}") for arm in study.arms for s in study.seeds]
    metrics = measured(study, folder.read("test"), records)
    folder.finish(metrics)
    tell(metrics, folder)
    return metrics


def train(study: Study, out: str | Path, *, parallel: int = 1, save_every: int | None = None, device: str) -> RunFolder:
    """Make the record of every arm and seed of the study that is not there yet; `run` without the page.

    Raises:
        ValueError: a run folder that holds another config, or whose records are of other data.
    """
    folder = opened(out, study.name, study.config, study.model, device, grows="seeds")
    small = study.model.endswith("tiny")
    told = report_as("data")
    corpus(
        study.corpus,
        processes=1 if small else os.cpu_count() or 1,
        report=lambda made, of: told(f"{made} of {of} shards") if made in (1, of) or made % 10 == 0 else None,
    )
    asked = test_set(study)
    if folder.once("test", lambda: asked) != asked:
        raise ValueError(f"{folder.path} holds answers to other questions than are asked here; choose another --out")
    save_every = study.recipe.save_every if save_every is None else save_every
    jobs = [(study, arm, seed, Path(out), device, save_every) for seed in study.seeds for arm in study.arms]
    if parallel > 1:
        with ProcessPoolExecutor(parallel, mp_context=get_context("spawn")) as pool:
            for running in [pool.submit(run_arm, *job) for job in jobs]:
                running.result()
        return folder
    threads = torch.get_num_threads()
    if small:  # a second thread would wait more than it computes
        torch.set_num_threads(1)
    try:
        for job in jobs:
            run_arm(*job)
    finally:
        torch.set_num_threads(threads)
    return folder


def _step(step: str, study: Study, out: str | Path, questions: int | None) -> dict[str, Any]:
    # They bring the report extra, which training must not need.
    from sharpmax.experiments.clrs_text.agreement import QUESTIONS, check_agreement
    from sharpmax.experiments.clrs_text.budget import count_budget

    if step == "budget":
        return count_budget(study, out)
    return check_agreement(study, out, questions=QUESTIONS if questions is None else questions)


def measured(study: Study, test: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return every number of the experiment, from the records alone."""
    longest = max(study.corpus.train_lengths)
    trained = [n for n in study.corpus.test_lengths if n <= longest]
    beyond = [n for n in study.corpus.test_lengths if n > longest]
    found = Records(test, records)
    return {
        "algorithms": list(study.corpus.algorithms),
        "seeds": len(study.seeds),
        "asked": len(test["tokens"]),
        "left_out": test["left_out"],
        "trained": trained,
        "beyond": beyond,
        **summarise(found, algorithms=study.corpus.algorithms, trained=trained, beyond=beyond),
        "runs": [
            {key: record[key] for key in ("arm", "seed", "tokens_per_second", "seconds", "generation", "origin")}
            for record in records
        ],
    }
