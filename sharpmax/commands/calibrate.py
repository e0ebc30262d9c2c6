"""Fit a temperature to every head of a model, choose how much of it to keep, and judge it: `sharpmax calibrate`.

Cost: a few minutes on an H200, hours on two cores. What was found: docs/guide-length.md.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sharpmax import defaults
from sharpmax.commands.judgement import check_exam, exam_config, judge, loaded_generator
from sharpmax.core.cards import Card
from sharpmax.core.policies import PerLayer, Policy
from sharpmax.hf.calibration.answers import write
from sharpmax.hf.calibration.choose import choose, search
from sharpmax.hf.calibration.descent import Draw, Recipe
from sharpmax.hf.calibration.exams import called, held_out_exam, selection_exam, windows_of
from sharpmax.hf.calibration.fitting_data import fitting_questions, fitting_texts, recipe_for
from sharpmax.hf.calibration.judge import Verdict, must_fit, must_hold
from sharpmax.hf.calibration.learn import learn
from sharpmax.hf.calibration.match import match
from sharpmax.hf.calibration.splits import text_of
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.sharpen.layers import attention_layers, layer_count
from sharpmax.runs.run_folder import RunFolder, run_name

MATCHED = (128, 256, 512, 1024, 2048, 4096, 8192)
"""The lengths that match measures at, those that the model and the text hold."""
BETAS = (1.05, 1.1, 1.2)
"""What search tries in each layer."""


def calibrate(
    model: str | LoadedModel,
    *,
    method: str = "learn",
    fit_tasks: Sequence[str] = defaults.FIT_TASKS,
    fit_sizes: Sequence[int] = defaults.FIT_SIZES,
    text_before: int = defaults.TEXT_BEFORE,
    steps: int = defaults.LEARN_STEPS,
    questions_a_step: int = defaults.QUESTIONS_PER_STEP,
    penalty: float | None = None,
    learning_rate: float = defaults.LEARN_RATE,
    learned: str = defaults.LEARNED,
    truth: float = defaults.TRUTH,
    out: str | Path = defaults.OUT,
    seed: int = defaults.SEED,
    accept_license: bool = False,
    device: str | None = None,
    **exam: Any,
) -> dict[str, Any]:
    """Fit a policy, choose how much of it to keep on one split, judge it on another; write a card unless it fails.

    A card of which text left the verdict undecided is written, and says so, if the mean rise of perplexity is allowed.

    Args:
        model: a built-in name, a local folder, a hub name, or a loaded model.
        method: match (no labels), learn (gradient through beta) or search (layer by layer).
        fit_tasks, fit_sizes: what to fit and choose on; sizes from low to high.
        text_before: the most characters of text that a question of `learn` stands behind.
        steps, questions_a_step, learning_rate, learned, truth: of `learn`, as in `Recipe`; a recall is one question.
        penalty: a fixed price of text for `learn`; None lets prices follow the allowed rise of perplexity.
        exam: what to judge on, as in `held_out_exam`.

    Returns:
        The metrics; `verdict` is one of `Verdict`, `card` the path of the card, or None if there is none.
    """
    if method not in defaults.METHODS:
        raise ValueError(f"expected a method among {', '.join(defaults.METHODS)}, got {method!r}")
    counts = {"steps": [steps], "questions_a_step": [questions_a_step], "fit_sizes": fit_sizes}
    check_exam(counts, seed, exam)
    if text_before < 0:
        raise ValueError(f"expected text_before of at least 0 characters, got {text_before}")
    if fit_sizes[0] > fit_sizes[-1]:
        raise ValueError(f"expected fit_sizes from low to high, got {', '.join(map(str, fit_sizes))}")
    most_rise = exam.get("most_rise", defaults.MOST_RISE)
    if method == "learn" and penalty is None and most_rise == 0:
        raise ValueError("expected most_rise above 0 for prices to follow, or a fixed penalty; got 0")
    recipe = recipe_for(most_rise, steps=steps, penalty=penalty, learned=learned, truth=truth, seed=seed)
    recipe = replace(recipe, learning_rate=learning_rate)
    loaded = loaded_generator(model, accept_license, device)
    exam["windows"] = windows_of(loaded, exam.get("windows"))
    # Held to itself at every length it is judged at: nothing is known beyond them.
    recipe = replace(recipe, windows=tuple(exam["windows"]))
    config = {"seed": seed, "model": loaded.name, "method": method, "fit_tasks": list(fit_tasks)}
    config |= {"fit_sizes": list(fit_sizes), "steps": steps, "questions_a_step": questions_a_step}
    config |= {"penalty": penalty, "learning_rate": learning_rate, "learned": learned, "truth": truth}
    config["text_before"] = text_before
    config |= exam_config(exam)
    place = (out, "calibrate", f"{run_name(loaded.name)}-{method}-seed{seed}", config)
    RunFolder.planned(*place)
    # Whatever may be refused is, before hours of fitting.
    selection = selection_exam(loaded, fit_tasks, fit_sizes[-1], seed, exam)
    must_fit(loaded, selection, called("choose", exam))
    held_out = held_out_exam(loaded, seed=seed, **exam)
    must_fit(loaded, held_out, called("report", exam))
    fit: _Fit | None = None
    if method == "match":
        fit = _matching(loaded, exam)
    elif method == "learn":
        before = text_of("fit", exam.get("text"))
        draw_step = fitting_questions(fit_tasks, fit_sizes, seed, questions_a_step, before=before, most=text_before)
        fit = _learning(loaded, draw_step, recipe, exam)
    folder = RunFolder.open(*place)
    began = time.perf_counter()
    curves: dict[str, list[float]] = {}
    if fit is None:
        choice = search(loaded, layer_count(attention_layers(loaded.model)), BETAS, selection, most_rise=most_rise)
    else:
        fitted, curves = fit(folder.path / "fit.safetensors")
        choice = choose(loaded, fitted, selection, most_rise=most_rise)
    fitting = time.perf_counter() - began
    metrics = {"fitting_seconds": round(fitting, 1), "chosen": choice.name, "scores": choice.scores, "curves": curves}
    metrics |= judge(loaded, choice.policy, held_out, most_rise)
    metrics["card"] = None
    # What is undecided may be kept if the mean is as allowed: to judge it on more text, there must be a card.
    if choice.policy is not None and metrics["verdict"] != Verdict.NO_GAIN and metrics["worst_rise"] <= most_rise:
        card = folder.path / "card.json"
        _card(loaded, choice.policy, config, metrics).save(card)
        metrics["card"] = str(card)
    folder.finish(metrics)
    return metrics


_Fit = Callable[[Path], tuple[PerLayer, dict[str, list[float]]]]
"""What fits a policy, given a file to keep its state in, and returns it with how the fit went."""


def _matching(loaded: LoadedModel, exam: Mapping[str, Any]) -> _Fit:
    """Return what matches, or raise ValueError where there is too little to match on."""
    text = _cut(loaded, text_of("fit", exam.get("text")), exam.get("text_tokens", defaults.TEXT_TOKENS))
    tokens = loaded.tokens(text).shape[1]
    lengths = [length for length in MATCHED if length <= min(loaded.context, tokens)]
    if len(lengths) < 3:
        raise ValueError(
            f"match needs {MATCHED[2]} tokens or more: {called('fit', exam)} has {tokens}, and {loaded.name} holds "
            f"{loaded.context}"
        )
    return lambda _: (match(loaded, text, lengths, reference=lengths[0]), {})


def _learning(loaded: LoadedModel, draw: Draw, recipe: Recipe, exam: Mapping[str, Any]) -> _Fit:
    """Return what learns, or raise ValueError for a text or a question that does not fit."""
    texts = fitting_texts(loaded, exam.get("text"))
    must_hold(loaded, texts, recipe.windows, called("fit", exam))
    for step in range(recipe.steps):
        longest = max(len(question.ids) for question in write(loaded.tokenizer, loaded.name, draw(step)))
        if longest > loaded.context:
            raise ValueError(
                f"a question to fit on has {longest} tokens with the text before it; {loaded.name} holds "
                f"{loaded.context}: lower --text-before or --fit-sizes"
            )

    def fit(keep: Path) -> tuple[PerLayer, dict[str, list[float]]]:
        result = learn(loaded, draw, texts, recipe, keep=keep)
        return result.policy, result.course._asdict()

    return fit


def _card(loaded: LoadedModel, policy: Policy, config: dict[str, Any], metrics: dict[str, Any]) -> Card:
    data = f"{', '.join(config['fit_tasks'])} of size {config['fit_sizes']}, seed {config['seed']}"
    notes = f"{config['method']}: {metrics['chosen']}; verdict: {metrics['verdict']}"
    return Card(policy, loaded.name, data, held_out=metrics["judgement"], notes=notes)


def _cut(loaded: LoadedModel, text: str, tokens: int) -> str:
    """Return about the first `tokens` tokens of a text; every token is at least a character."""
    ids = loaded.tokens(text[: 8 * tokens], special=False)[0]
    return str(loaded.tokenizer.decode(ids[:tokens])) if len(ids) > tokens else text[: 8 * tokens]
