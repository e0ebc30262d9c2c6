"""Judge a policy card on a model again: `sharpmax evaluate`."""

import hashlib
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sharpmax import defaults
from sharpmax.core.cards import policy_to_json
from sharpmax.hf.calibration.exams import at_length, called, held_out_exam, windows_of
from sharpmax.hf.calibration.judge import must_fit, must_take
from sharpmax.hf.calibration.reading_time import TIMED, TURNS
from sharpmax.hf.models.identity import fingerprint
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.pace import SHARPENED, seconds_per_token
from sharpmax.hf.sharpen.extended import extended
from sharpmax.hf.sharpen.sidecar import card_for
from sharpmax.hf.verbs.judgement import (
    JudgedResult,
    check_exam,
    exam_config,
    judge,
    keep_sizes_that_fit,
    loaded_generator,
    quick_exam,
    text_found,
)
from sharpmax.hf.verbs.next_command import given
from sharpmax.hf.verbs.result import name_of
from sharpmax.runs.progress import say, say_estimate, shown, stage
from sharpmax.runs.run_folder import RunFolder, run_name


class EvaluationResult(JudgedResult):
    """A card, judged again."""

    def _title(self) -> str:
        return f"The card {Path(self.metrics['card']).stem} on"


def evaluate(
    model: str | LoadedModel,
    card: str | Path,
    *,
    quick: bool = False,
    out: str | Path = defaults.OUT,
    seed: int = defaults.SEED,
    accept_license: bool = False,
    device: str | None = None,
    quiet: bool = False,
    **exam: Any,
) -> EvaluationResult:
    """Judge a card on a model again, on data that no fitting step of the same seed saw.

    A card that extends the context is judged at the extended length too, beside its extension alone and beside the
    model as it is.

    A card counts by what it says, not by its path, and so does a model: one that was edited or trained on since makes
    another run. A killed run continues.

    Args:
        model: a built-in name, a local folder, a hub name, or a loaded model.
        card: a file, a folder that holds one, or a name that `sharpmax cards` lists.
        quick: the small exam of `calibrate(quick=True)`, for a first verdict; what is given beside it is kept.
        exam: what to judge on, as in `held_out_exam`: tasks, sizes, prompts, windows, text, text_tokens, most_rise.

    Returns:
        The result: `verdict` is one of `Verdict`.

    Raises:
        ValueError: no such model, device, task or file, or an option out of its range; before any work.
        NotImplementedError: a model that attends in a way that cannot be reached.

    >>> evaluate("smollm2", "smollm2", sizes=[32], prompts=24).verdict  # doctest: +SKIP
    'gains'
    """
    options = given(exam, seed, quick=quick) | ({"quick": True} if quick else {})
    are_asked = exam.get("sizes") is not None
    if quick:
        exam = exam | quick_exam(exam)
    check_exam({}, seed, exam)
    found = card_for(name_of(model), card)
    with shown(quiet=quiet), ExitStack() as on:
        as_it_is = loaded = loaded_generator(model, accept_license, device)
        weights = fingerprint(as_it_is)
        if found.extension is not None:
            loaded = on.enter_context(extended(as_it_is, found.extension))
            exam["text_tokens"] = at_length(found.extension, 0, exam)[1]
        exam["windows"] = windows_of(loaded, exam.get("windows"))
        keep_sizes_that_fit(loaded, exam, asked=are_asked)
        policy_digest = digest(policy_to_json(found.policy))
        config = {"seed": seed, "model": loaded.name, "weights": weights, "card": policy_digest, **exam_config(exam)}
        config |= {} if found.extension is None else {"extension": found.extension.to_json()}
        # Another exam of the same card goes into a folder of its own.
        asked = digest(config)[:8]
        name = f"{run_name(loaded.name)}-{run_name(Path(card).stem)}-seed{seed}-{asked}"
        folder = RunFolder.planned(out, "evaluate", name, config)
        with stage("drawing questions and text"):
            held_out = held_out_exam(loaded, seed=seed, **exam)
            must_fit(loaded, held_out, called("report", exam))
            must_take(loaded, found.policy)
            told = text_found(loaded, exam, held_out)
            work = (held_out.tokens(loaded) + (1 + TURNS) * TIMED) * (1 + SHARPENED)
            seconds = seconds_per_token(loaded) * work
        if told:
            say(told["said"])
        say_estimate(seconds, str(loaded.model.device), "" if quick else "--quick takes less")
        folder.begin()
        on.close()  # what is judged is beside the model as it is, too
        metrics = {"chosen": "card", "card": str(card), "seconds": round(seconds), "own_text": told}
        metrics |= {"options": options}
        most_rise = exam.get("most_rise", defaults.MOST_RISE)
        metrics |= judge(as_it_is, found.policy, held_out, most_rise, folder.once, found.extension)
        folder.finish(metrics)
    return EvaluationResult(metrics, folder.path, loaded.name)


def digest(content: Any) -> str:
    """Return a fingerprint of JSON values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
