"""Fit a temperature to every head of a model, choose how much of it to keep, and judge it: `sharpmax calibrate`.

Cost: a few minutes on an H200, hours on two cores; with `quick` about ten minutes on two cores. What was found:
docs/guides/calibrate.md.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from sharpmax import defaults
from sharpmax.core.cards import CARD_FILE, Card
from sharpmax.core.extension import Extension, extension_called
from sharpmax.core.policies import Constant, PerLayer, Policy
from sharpmax.flags import given as not_none
from sharpmax.hf.calibration.answers import write
from sharpmax.hf.calibration.choose import EXPECTED, FINE, choose, search
from sharpmax.hf.calibration.descent import Draw, Recipe
from sharpmax.hf.calibration.exams import MORE_TEXT, at_length, called, held_out_exam, selection_exam, windows_of
from sharpmax.hf.calibration.fitting_data import fitting_questions, fitting_texts, recipe_for
from sharpmax.hf.calibration.judge import Verdict, must_fit, must_hold
from sharpmax.hf.calibration.learn import learn, query_heads
from sharpmax.hf.calibration.match import match
from sharpmax.hf.calibration.reading_time import TIMED, TURNS
from sharpmax.hf.calibration.rivals import Rival, learn_rival, save_merged
from sharpmax.hf.calibration.splits import read_for, text_of
from sharpmax.hf.models.identity import fingerprint
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.pace import LEARNED, SHARPENED, seconds_per_token
from sharpmax.hf.sharpen.extended import extended
from sharpmax.hf.sharpen.layers import attention_layers, layer_count
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
from sharpmax.hf.verbs.result import must_be_list
from sharpmax.hf.verbs.sizes import question_tokens, usual_sizes
from sharpmax.runs.progress import say, say_estimate, shown, stage
from sharpmax.runs.run_folder import RunFolder, run_name

MATCHED = (128, 256, 512, 1024, 2048, 4096, 8192)
"""The lengths that match measures at, those that the model and the text hold."""
BETAS = (1.05, 1.1, 1.2)
"""What search tries in each layer."""
USUAL_FIT: dict[str, Any] = {
    "fit_sizes": defaults.FIT_SIZES,
    "text_before": defaults.TEXT_BEFORE,
    "steps": defaults.LEARN_STEPS,
    "questions_a_step": defaults.QUESTIONS_PER_STEP,
    "learning_rate": defaults.LEARN_RATE,
    "learned": defaults.LEARNED,
    "truth": defaults.TRUTH,
}
"""What a fit is where nothing else is said, of a run that is not quick."""
QUICK_CANDIDATES = 5
"""How many candidates a quick run tries, usually."""
READ = 0.6
"""The share of an exam that a candidate reads before it is given up, on average."""


def given_up(windows: Sequence[int] = defaults.QUICK["windows"]) -> str:
    """Say what a quick run gives up that judges text in these windows."""
    read = ", ".join(map(str, windows))
    return (
        f"--quick makes a small fit, and judges text in windows of {read} tokens only: what longer text costs is not "
        "known"
    )


class CalibrationResult(JudgedResult):
    """A fitted policy and its judgement."""

    def _title(self) -> str:
        return "Calibration of"

    def summary(self) -> str:
        """Return every comparison, its interval, and the verdict; of a quick run also what was given up."""
        if not self.metrics["quick"] or "extension" in self.metrics:
            return super().summary()
        windows = self.metrics.get("options", {}).get("windows", defaults.QUICK["windows"])
        return f"{super().summary()}\n{given_up(windows)}"


def calibrate(
    model: str | LoadedModel,
    *,
    method: str = "learn",
    quick: bool = False,
    fit_tasks: Sequence[str] = defaults.FIT_TASKS,
    fit_sizes: Sequence[int] | None = None,
    text_before: int | None = None,
    steps: int | None = None,
    questions_a_step: int | None = None,
    penalty: float | None = None,
    learning_rate: float | None = None,
    learned: str | None = None,
    truth: float | None = None,
    extend: float | None = None,
    scaling: str | None = None,
    out: str | Path = defaults.OUT,
    seed: int = defaults.SEED,
    accept_license: bool = False,
    device: str | None = None,
    quiet: bool = False,
    **exam: Any,
) -> CalibrationResult:
    """Fit a policy, choose how much of it to keep on one split, judge it on another; write a card unless it fails.

    A card of which text left the verdict undecided is written, and says so, if the mean rise of perplexity is allowed.
    A killed run continues where it was, in any of its three stages.

    Args:
        model: a built-in name, a local folder, a hub name, or a loaded model.
        method: match (no labels), learn (gradient through beta) or search (layer by layer) a card; or headscale, seal-h
            or seal-c: scales that are merged into the weights, in the folder `metrics["merged"]`, and no card.
        quick: a small fit and a small exam, for a first verdict; what is given beside it is kept.
        fit_tasks, fit_sizes: what to fit and choose on; sizes from low to high.
        text_before: the most characters of text that a question of `learn` stands behind.
        steps, questions_a_step, learning_rate, learned, truth: of `learn`, as in `Recipe`; a recall is one question.
            What is None is as in `sharpmax.defaults`, or smaller if `quick`.
        extend: how many times the trained context the model is to read: it is then fitted, chosen and judged at that
            length too, on long documents (`sharpmax.tasks.documents`) unless a text is given, and the card carries its
            extension. The verdict is on the policy, beside the extension alone.
        scaling: of the positions, with `extend`: none, ntk, yarn (unless given), yarn-plain or self-extend.
        penalty: a fixed price of text for `learn`; None lets prices follow the allowed rise of perplexity.
        quiet: say nothing while it works.
        exam: what to judge on, as in `held_out_exam`.

    Returns:
        The result: `verdict` is one of `Verdict`, `card` the path of the card, or None if there is none.

    Raises:
        ValueError: no such model, device, task or file, or an option out of its range; before any work.
        NotImplementedError: a model that attends in a way that cannot be reached, or cannot be extended.

    >>> calibrate("smollm2", quick=True).card  # doctest: +SKIP
    """
    windows = exam.get("windows")
    if extend is not None and extend < 1:
        raise ValueError(f"expected extend of at least 1 times the trained context, got {extend:g}")
    if extend is None and scaling is not None:
        raise ValueError(
            f"scaling is of an extended context: say how far with extend, or leave out scaling {scaling!r}"
        )
    scaling = scaling or defaults.SCALING
    options = given(exam, seed, quick=quick)
    if method not in defaults.METHODS:
        raise ValueError(f"expected a method among {', '.join(defaults.METHODS)}, got {method!r}")
    asked = {"sizes": exam.get("sizes"), "fit_sizes": fit_sizes, "text_before": text_before}
    are_asked = {name: value is not None for name, value in asked.items()}
    if quick:
        exam |= quick_exam(exam)
    usual = USUAL_FIT | ({name: defaults.QUICK[name] for name in USUAL_FIT if name in defaults.QUICK} if quick else {})
    how = {"steps": steps, "questions_a_step": questions_a_step, "learning_rate": learning_rate, "learned": learned}
    fitting = usual | not_none(fit_sizes=fit_sizes, text_before=text_before, truth=truth, **how)
    must_be_list("fit_tasks", fit_tasks)
    counts = {name: [fitting[name]] for name in ("steps", "questions_a_step")}
    check_exam({**counts, "fit_sizes": fitting["fit_sizes"]}, seed, exam)
    fit_sizes, text_before = fitting["fit_sizes"], fitting["text_before"]
    if text_before < 0:
        raise ValueError(f"expected text_before of at least 0 characters, got {text_before}")
    if fit_sizes[0] > fit_sizes[-1]:
        raise ValueError(f"expected fit_sizes from low to high, got {', '.join(map(str, fit_sizes))}")
    most_rise = exam.get("most_rise", defaults.MOST_RISE)
    if method in ("learn", *defaults.MERGED) and penalty is None and most_rise == 0:
        raise ValueError("expected most_rise above 0 for prices to follow, or a fixed penalty; got 0")
    of_recipe = {name: fitting[name] for name in ("steps", "learning_rate", "learned", "truth")}
    recipe = recipe_for(most_rise, penalty=penalty, seed=seed, **of_recipe)
    with shown(quiet=quiet), ExitStack() as on:
        as_it_is = loaded = loaded_generator(model, accept_license, device)
        weights = fingerprint(as_it_is)
        extension = None if extend is None else extension_called(scaling, float(extend), loaded.context)
        if extension is not None:
            loaded = on.enter_context(extended(as_it_is, extension))
            text_before, exam["text_tokens"] = at_length(extension, text_before, exam)
            if quick and windows is None:  # the longer length is what it is about
                exam["windows"] = (*exam["windows"], extension.context)
        exam["windows"] = windows_of(loaded, exam.get("windows"))
        keep_sizes_that_fit(loaded, exam, asked=are_asked["sizes"])
        if not are_asked["fit_sizes"]:
            held = usual_sizes(loaded, fit_tasks, fit_sizes, "--fit-sizes")
            fit_sizes = (held[0], held[-1])
        if not are_asked["text_before"]:
            text_before = _room_before(loaded, fit_tasks, fit_sizes[-1], text_before)
        # Held to itself at every length it is judged at: nothing is known beyond them.
        recipe = replace(recipe, windows=tuple(exam["windows"]))
        config = {"seed": seed, "model": loaded.name, "weights": weights, "method": method, "penalty": penalty}
        config |= {**fitting, "fit_tasks": list(fit_tasks), "fit_sizes": list(fit_sizes), "text_before": text_before}
        config |= exam_config(exam) | ({"quick": True} if quick else {})
        config |= {} if extension is None else {"extension": extension.to_json()}
        longer = "" if extend is None else f"-{scaling}-{extend:g}x"
        name = f"{run_name(loaded.name)}-{method}{longer}{'-quick' if quick else ''}-seed{seed}"
        folder = RunFolder.planned(out, "calibrate", name, config)
        with stage("drawing questions and text"):
            # Whatever may be refused is, before hours of fitting.
            selection = selection_exam(
                loaded, fit_tasks, fit_sizes[-1], seed, exam, more_text=1 if quick else MORE_TEXT
            )
            must_fit(loaded, selection, called("choose", exam))
            held_out = held_out_exam(loaded, seed=seed, **exam)
            must_fit(loaded, held_out, called("report", exam))
            fit, fit_tokens = None, 0.0
            if method == "match":
                fit, fit_tokens = _matching(loaded, exam)
            elif method != "search":
                before = text_of("fit", exam.get("text"))
                draw = fitting_questions(
                    fit_tasks, fit_sizes, seed, fitting["questions_a_step"], before=before, most=text_before
                )
                fit, fit_tokens = _learning(loaded, draw, recipe, exam, method)
            candidates = EXPECTED if fit else 1 + len(BETAS) * layer_count(attention_layers(loaded.model))
            candidates = min(candidates, QUICK_CANDIDATES) if quick and fit else candidates
            pace = seconds_per_token(loaded)
            seconds = pace * _work(fit_tokens, selection.tokens(loaded), held_out.tokens(loaded), candidates)
        if told := text_found(loaded, exam, held_out):
            say(told["said"])
        folder.begin()
        advice = "" if quick else "--quick gives a first verdict on two cores in about ten minutes"
        say_estimate(seconds, str(loaded.model.device), advice)
        if folder.steps or (folder.path / "fit.safetensors").exists():
            say(f"going on with the run in {folder.path}")
        began = time.perf_counter()
        curves: dict[str, list[float]] = {}
        chosen_by: dict[str, Any] = {"most_rise": most_rise, "once": lambda key, of: folder.once(f"choose-{key}", of)}
        if fit is None:
            layers = layer_count(attention_layers(loaded.model))
            choice = search(loaded, layers, BETAS, selection, **chosen_by)
        else:
            fitted, curves = fit(folder.path / "fit.safetensors")
            choice = choose(loaded, fitted, selection, fine=defaults.QUICK_FINE if quick else FINE, **chosen_by)
        seconds = time.perf_counter() - began
        on.close()  # what is judged is beside the model as it is, too
        metrics: dict[str, Any] = {"fitting_seconds": round(seconds, 1), "chosen": choice.name, "scores": choice.scores}
        metrics |= {"curves": curves, "quick": quick, "own_text": told, "options": options}
        metrics["seconds"] = round(pace * held_out.tokens(loaded) * (1 + SHARPENED))
        metrics |= judge(
            as_it_is, choice.policy, held_out, most_rise, lambda key, of: folder.once(f"judge-{key}", of), extension
        )
        metrics["card"] = None
        # What is undecided may be kept if the mean is as allowed: to judge it on more text, there must be a card.
        if choice.policy is not None and metrics["verdict"] != Verdict.NO_GAIN and metrics["worst_rise"] <= most_rise:
            if isinstance(choice.policy, Rival):
                metrics["merged"] = str(save_merged(loaded, choice.policy, folder.path / "merged"))
                if extension is not None:  # what weights cannot hold lies beside them
                    beside = _card(loaded, Constant(1.0), config, metrics, extension)
                    beside.save(folder.path / "merged" / CARD_FILE)
            else:
                card = folder.path / "card.json"
                _card(loaded, choice.policy, config, metrics, extension).save(card)
                metrics["card"] = str(card)
        folder.finish(metrics)
    return CalibrationResult(metrics, folder.path, loaded.name)


def _room_before(loaded: LoadedModel, tasks: Sequence[str], size: int, most: int) -> int:
    """Return how many characters may stand before a question of that size: a character is at most a token, mostly."""
    asked = max(question_tokens(loaded, task, size) for task in tasks)
    if asked + most // 3 <= loaded.context:  # three characters a token are few: what does not fit is refused later
        return most
    room = max(0, min(most, loaded.context - asked))
    say(f"{loaded.name} holds {loaded.context} tokens: --text-before {room}, instead of {most}")
    return room


def _work(fit_tokens: float, selection: int, held_out: int, candidates: int) -> float:
    """Return how many tokens all of it reads, in plain readings, about; an exam is its tokens."""
    choosing = selection * (1 + SHARPENED * READ * (candidates - 1))
    judging = held_out * (1 + SHARPENED) + (1 + TURNS) * TIMED * (1 + SHARPENED)
    return fit_tokens + choosing + judging


_Fit = Callable[[Path], tuple[PerLayer | Rival, dict[str, list[float]]]]
"""What fits a policy or a rival, given a file to keep its state in, and returns it with how the fit went."""


def _matching(loaded: LoadedModel, exam: Mapping[str, Any]) -> tuple[_Fit, float]:
    """Return what matches and how much it reads, or raise ValueError where there is too little to match on."""
    text = _cut(loaded, read_for(loaded, "fit", exam.get("text")), exam.get("text_tokens", defaults.TEXT_TOKENS))
    tokens = loaded.tokens(text).shape[1]
    lengths = [length for length in MATCHED if length <= min(loaded.context, tokens)]
    if len(lengths) < 3:
        raise ValueError(
            f"match needs {MATCHED[2]} tokens or more: {called('fit', exam)} has {tokens}, and {loaded.name} holds "
            f"{loaded.context}"
        )
    query_heads(loaded.model)  # refuses a model with layers that text passes by

    def fit(_: Path) -> tuple[PerLayer, dict[str, list[float]]]:
        with stage("fit"):
            return match(loaded, text, lengths, reference=lengths[0]), {}

    return fit, lengths[-1] + lengths[0]


def _learning(
    loaded: LoadedModel, draw: Draw, recipe: Recipe, exam: Mapping[str, Any], method: str
) -> tuple[_Fit, float]:
    """Return what learns and how much it reads, or raise ValueError for a text or a question that does not fit."""
    texts = fitting_texts(loaded, exam.get("text"))
    must_hold(loaded, texts, recipe.windows, called("fit", exam))
    asked = 0
    for step in range(recipe.steps):
        lengths = [len(question.ids) for question in write(loaded.tokenizer, loaded.name, draw(step))]
        longest = max(lengths)
        asked += longest * len(lengths)  # padded to the longest
        if longest > loaded.context:
            raise ValueError(
                f"a question to fit on has {longest} tokens with the text before it; {loaded.name} holds "
                f"{loaded.context}: lower --text-before or --fit-sizes"
            )

    def merged(keep: Path) -> tuple[Rival, dict[str, list[float]]]:
        faster = recipe.learning_rate / defaults.LEARN_RATE
        found = learn_rival(loaded, method, draw, texts, recipe, faster=faster, keep=keep)
        return found.rival, found.course._asdict()

    def fit(keep: Path) -> tuple[PerLayer, dict[str, list[float]]]:
        result = learn(loaded, draw, texts, recipe, keep=keep)
        return result.policy, result.course._asdict()

    text = sum(max(window, recipe.text_tokens) for window in recipe.windows) / len(recipe.windows) * recipe.steps
    query_heads(loaded.model)  # refuses a model with layers that text passes by
    # Text is read once by the plain model, and three times as many logits are made of it as of a question.
    if method in defaults.MERGED:
        Rival.start(loaded, method, recipe)  # what the model cannot have is refused before any work
    return merged if method in defaults.MERGED else fit, LEARNED * asked + (1 + 1.5 * LEARNED) * text


def _card(
    loaded: LoadedModel, policy: Policy, config: dict[str, Any], metrics: dict[str, Any], extension: Extension | None
) -> Card:
    data = f"{', '.join(config['fit_tasks'])} of size {config['fit_sizes']}, seed {config['seed']}"
    notes = f"{config['method']}: {metrics['chosen']}; verdict: {metrics['verdict']}"
    held_out = metrics["judgement"] if extension is None else {**metrics["judgement"], "whole": metrics["whole"]}
    return Card(policy, loaded.name, data, held_out=held_out, notes=notes, extension=extension)


def _cut(loaded: LoadedModel, text: str, tokens: int) -> str:
    """Return about the first `tokens` tokens of a text; every token is at least a character."""
    ids = loaded.tokens(text[: 8 * tokens], special=False)[0]
    return str(loaded.tokenizer.decode(ids[:tokens])) if len(ids) > tokens else text[: 8 * tokens]
