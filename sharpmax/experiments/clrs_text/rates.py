"""Which learning rate: the plain model trained briefly at each, judged on examples kept out of training and test.

The rate that is best for plain attention serves every arm, so if it favours one, it favours plain. A brief training
falls to a rate of 0 as a long one does, and may prefer a higher one; the differences say how much hangs on it.
"""

import dataclasses
import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharpmax.experiments.clrs_text.arm import encoded, opened
from sharpmax.experiments.clrs_text.study import Study
from sharpmax.hf.finetune.answer_batches import encode
from sharpmax.hf.finetune.answer_model import mean_loss
from sharpmax.hf.finetune.judging import autocast
from sharpmax.hf.finetune.train import finetune
from sharpmax.hf.models.load_to_train import load_by_name
from sharpmax.runs.progress import report_as
from sharpmax.tasks.clrs_text.corpus import held_out

if TYPE_CHECKING:
    from sharpmax.report import Page


def try_rates(study: Study, rates: Sequence[float], out: str | Path, *, device: str) -> dict[str, Any]:
    """Return the loss on held-out examples after the study's steps at each rate, and the best; kept in a run folder."""
    if not rates or not all(0 < rate < math.inf for rate in rates):
        raise ValueError(f"expected learning rates above 0, got {list(rates)}")
    config = {**study.config, "arms": ["plain"], "seeds": [study.seeds[0]], "rates": list(rates)}
    folder = opened(out, f"{study.name}-rates", config, study.model, device)
    tried = [folder.once(f"rate{rate:g}", partial(_try, study, rate, folder.path, device)) for rate in rates]
    best = min(tried, key=lambda found: found["held_out_loss"])
    metrics = {"tried": tried, "best": best["rate"]}
    folder.finish(metrics)
    _page(metrics, config).save(folder.path)
    return metrics


def _page(metrics: dict[str, Any], config: dict[str, Any]) -> "Page":
    from sharpmax.report import Page, Table, Text  # brings the report extra, which trying rates must not need

    tried, recipe = metrics["tried"], config["recipe"]
    text = (
        f"{config['model']}, plain attention, {recipe['steps']:,} steps of {recipe['tokens']:,} tokens at each rate, "
        f"the same examples in the same order; judged by the loss on {tried[0]['held_out_examples']} examples that are "
        f"in neither training nor test. The best, {metrics['best']:g}, serves every arm: if the choice favours one, it "
        "favours plain attention."
    )
    rows = [[f"{found['rate']:g}", f"{found['held_out_loss']:.4f}"] for found in tried]
    return Page(
        "CLRS-Text: which learning rate?",
        "The learning rate of the experiment, chosen before it on examples of neither training nor test.",
        [Text(text, "What was tried"), Table(["learning rate", "loss on held-out examples"], rows, "Lower is better.")],
    )


def _try(study: Study, rate: float, folder: Path, device: str) -> dict[str, Any]:
    seed = study.seeds[0]
    loaded = load_by_name(study.model, seed=seed, device=device)
    train, _ = encoded(study.model, study.corpus)
    pairs = [(example.question, example.answer) for example in held_out(study.corpus)]
    recipe = dataclasses.replace(study.recipe, learning_rate=rate, seed=seed, save_every=0)
    told = report_as(f"rate {rate:g}")
    began = time.perf_counter()
    done = finetune(loaded.model, train, recipe, folder=folder / "training", report=told)
    seconds = time.perf_counter() - began
    with autocast(device):
        loss = mean_loss(loaded.model, encode(loaded.tokenizer, pairs))
    told(f"loss {loss:.4f} on {len(pairs)} examples held out")
    return {
        "rate": rate,
        "held_out_loss": loss,
        "held_out_examples": len(pairs),
        "losses": done.losses,
        "tokens_per_second": round(done.tokens_per_second),
        "training_seconds": round(seconds, 1),
    }
