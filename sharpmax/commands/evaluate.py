"""Judge a policy card on a model again: `sharpmax evaluate`."""

import hashlib
import json
from pathlib import Path
from typing import Any

from sharpmax import defaults
from sharpmax.commands.judgement import check_exam, exam_config, judge, loaded_generator
from sharpmax.core.cards import policy_to_json
from sharpmax.hf.calibration.exams import called, held_out_exam, windows_of
from sharpmax.hf.calibration.judge import must_fit, must_take
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.sharpen.sidecar import card_for
from sharpmax.runs.run_folder import RunFolder, run_name


def evaluate(
    model: str | LoadedModel,
    card: str | Path,
    *,
    out: str | Path = defaults.OUT,
    seed: int = defaults.SEED,
    accept_license: bool = False,
    device: str | None = None,
    **exam: Any,
) -> dict[str, Any]:
    """Judge a card on a model again, on data that no fitting step of the same seed saw; returns the metrics.

    A card counts by what it says, not by its path: one that was edited makes another run.
    """
    check_exam({}, seed, exam)
    found = card_for(model if isinstance(model, str) else model.name, card)
    loaded = loaded_generator(model, accept_license, device)
    exam["windows"] = windows_of(loaded, exam.get("windows"))
    config = {"seed": seed, "model": loaded.name, "card": _digest(policy_to_json(found.policy)), **exam_config(exam)}
    # Another exam of the same card goes into a folder of its own.
    asked = _digest(config)[:8]
    place = (out, "evaluate", f"{run_name(loaded.name)}-{run_name(Path(card).stem)}-seed{seed}-{asked}", config)
    RunFolder.planned(*place)
    held_out = held_out_exam(loaded, seed=seed, **exam)
    must_fit(loaded, held_out, called("report", exam))
    must_take(loaded, found.policy)
    metrics = {"chosen": "card", "card": str(card)}
    metrics |= judge(loaded, found.policy, held_out, exam.get("most_rise", defaults.MOST_RISE))
    folder = RunFolder.open(*place)
    folder.finish(metrics)
    return metrics


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
