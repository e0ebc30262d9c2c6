"""Fit a temperature to every head of a model, and find out honestly whether it is worth having.

Claim (ours): the paper's one polynomial for every head harms a pretrained model; a few numbers a head, fitted, help it,
and extend beyond the sizes they were fitted on. Cost: a few minutes on an H200, hours on two cores.
Expected: lookup accuracy up severalfold at 2 to 8 times the fitted size, perplexity within 0.5 % of every kind of text.
What was found: docs/guide-length.md.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sharpmax.core.cards import Card, policy_to_json
from sharpmax.core.policies import PerLayer, Policy
from sharpmax.extras import extra
from sharpmax.hf.calibrate.answers import write
from sharpmax.hf.calibrate.choose import Choice, choose, search
from sharpmax.hf.calibrate.descent import Draw, Recipe
from sharpmax.hf.calibrate.exams import (
    MOST_RISE,
    TEXT_TOKENS,
    called,
    held_out_exam,
    selection_exam,
    windows_of,
)
from sharpmax.hf.calibrate.fitting_data import (
    FITTED_ON,
    FITTED_SIZES,
    STEPS,
    TEXT_BEFORE,
    TRUTH,
    fitting_questions,
    fitting_texts,
    recipe_for,
)
from sharpmax.hf.calibrate.judge import (
    TEXT,
    TURNS,
    Exam,
    Judgement,
    Verdict,
    compare,
    must_fit,
    must_hold,
    must_take,
    name_of,
    sit,
    time_ratio,
)
from sharpmax.hf.calibrate.learn import learn
from sharpmax.hf.calibrate.match import match
from sharpmax.hf.calibrate.splits import text_of
from sharpmax.hf.models.load import LoadedModel, load
from sharpmax.hf.sharpen.layers import attention_layers, layer_count
from sharpmax.hf.sharpen.sidecar import card_for
from sharpmax.runs.run_folder import RunFolder, run_name
from sharpmax.statistics import Paired

with extra("hf"):
    pass

METHODS = ("match", "learn", "search")
MATCHED = (128, 256, 512, 1024, 2048, 4096, 8192)
"""The lengths that match measures at, those that the model and the text hold."""
BETAS = (1.05, 1.1, 1.2)
"""What search tries in each layer."""


def calibrate(
    model: str | LoadedModel,
    *,
    method: str = "learn",
    fit_tasks: Sequence[str] = FITTED_ON,
    fit_sizes: Sequence[int] = FITTED_SIZES,
    text_before: int = TEXT_BEFORE,
    steps: int = STEPS,
    questions_a_step: int = 2,
    penalty: float | None = None,
    learning_rate: float = 0.03,
    learned: str = "abc",
    truth: float = TRUTH,
    out: str | Path = "runs",
    seed: int = 0,
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
    if method not in METHODS:
        raise ValueError(f"expected a method among {', '.join(METHODS)}, got {method!r}")
    counts = {"steps": [steps], "questions_a_step": [questions_a_step], "fit_sizes": fit_sizes}
    _check_numbers(counts, seed, exam)
    if text_before < 0:
        raise ValueError(f"expected text_before of at least 0 characters, got {text_before}")
    if fit_sizes[0] > fit_sizes[-1]:
        raise ValueError(f"expected fit_sizes from low to high, got {', '.join(map(str, fit_sizes))}")
    most_rise = exam.get("most_rise", MOST_RISE)
    if method == "learn" and penalty is None and most_rise == 0:
        raise ValueError("expected most_rise above 0 for prices to follow, or a fixed penalty; got 0")
    recipe = recipe_for(most_rise, steps=steps, penalty=penalty, learned=learned, truth=truth, seed=seed)
    recipe = replace(recipe, learning_rate=learning_rate)
    loaded = _loaded(model, accept_license, device)
    exam["windows"] = windows_of(loaded, exam.get("windows"))
    # Held to itself at every length it is judged at: what n does beyond them is anybody's guess.
    recipe = replace(recipe, windows=tuple(exam["windows"]))
    config = {"seed": seed, "model": loaded.name, "method": method, "fit_tasks": list(fit_tasks)}
    config |= {"fit_sizes": list(fit_sizes), "steps": steps, "questions_a_step": questions_a_step}
    config |= {"penalty": penalty, "learning_rate": learning_rate, "learned": learned, "truth": truth}
    config["text_before"] = text_before
    config |= _config_of(exam)
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
    metrics |= _judged(loaded, choice, held_out, most_rise)
    metrics["card"] = None
    # What is undecided may be kept if the mean is as allowed: to judge it on more text, there must be a card.
    if choice.policy is not None and metrics["verdict"] != Verdict.NO_GAIN and metrics["worst_rise"] <= most_rise:
        card = folder.path / "card.json"
        _card(loaded, choice.policy, config, metrics).save(card)
        metrics["card"] = str(card)
    folder.finish(metrics)
    return metrics


def evaluate(
    model: str | LoadedModel,
    card: str | Path,
    *,
    out: str | Path = "runs",
    seed: int = 0,
    accept_license: bool = False,
    device: str | None = None,
    **exam: Any,
) -> dict[str, Any]:
    """Judge a card on a model again, on data that no fitting step of the same seed saw; returns the metrics.

    A card counts by what it says, not by its path: one that was edited makes another run.
    """
    _check_numbers({}, seed, exam)
    found = card_for(model if isinstance(model, str) else model.name, card)
    loaded = _loaded(model, accept_license, device)
    exam["windows"] = windows_of(loaded, exam.get("windows"))
    config = {"seed": seed, "model": loaded.name, "card": _digest(policy_to_json(found.policy)), **_config_of(exam)}
    # Another exam of the same card goes into a folder of its own.
    asked = _digest(config)[:8]
    place = (out, "evaluate", f"{run_name(loaded.name)}-{run_name(Path(card).stem)}-seed{seed}-{asked}", config)
    RunFolder.planned(*place)
    held_out = held_out_exam(loaded, seed=seed, **exam)
    must_fit(loaded, held_out, called("report", exam))
    must_take(loaded, found.policy)
    choice = Choice("card", found.policy, {})
    most_rise = exam.get("most_rise", MOST_RISE)
    metrics = {"chosen": "card", "card": str(card)}
    metrics |= _judged(loaded, choice, held_out, most_rise)
    folder = RunFolder.open(*place)
    folder.finish(metrics)
    return metrics


def _config_of(exam: Mapping[str, Any]) -> dict[str, Any]:
    """Return an exam's options as they are recorded: a text by its path and its contents."""
    options = {name: str(value) if isinstance(value, Path) else value for name, value in exam.items()}
    if exam.get("text") is not None:
        options["text_sha256"] = hashlib.sha256(Path(exam["text"]).read_bytes()).hexdigest()
    return options


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _check_numbers(fitting: Mapping[str, Sequence[int]], seed: int, exam: Mapping[str, Any]) -> None:
    """Raise ValueError for a number that is too small or none, or a text that is not there, before any work."""
    asked = {name: exam[name] for name in ("sizes", "windows") if exam.get(name) is not None}
    asked |= {name: [exam[name]] for name in ("prompts", "text_tokens", "together") if name in exam}
    for name, values in {**fitting, **asked}.items():
        least = 2 if name == "windows" else 1  # a token alone has no next one to predict
        if not values or min(values) < least:
            raise ValueError(f"expected {name} of at least {least}, got {', '.join(map(str, values)) or 'none'}")
    if seed < 0:
        raise ValueError(f"expected a seed of at least 0, got {seed}")
    most_rise = exam.get("most_rise", MOST_RISE)
    if not 0 <= most_rise < math.inf:
        raise ValueError(f"expected most_rise, a share such as 0.005, of at least 0, got {most_rise}")
    if exam.get("text") is not None and not Path(exam["text"]).is_file():
        raise FileNotFoundError(f"there is no text file {exam['text']}")


def print_judgement(metrics: dict[str, Any]) -> None:
    """Print a judgement: every comparison, its test, and the verdict, which follows from them."""
    judgement = metrics["judgement"]
    if judgement is None:
        print("no candidate was better on the selection split; the model stays as it is, and no card was written")
        return
    for task, sizes in judgement["tasks"].items():
        for size, found in sizes.items():
            right, loss = (Paired.from_json(found[name]) for name in ("accuracy", "loss"))
            low, high = (100 * end for end in right.interval_of_shares)
            print(
                f"{task:16} {size:>5}: right {right.plain:6.1%} -> {right.policy:6.1%} "
                f"({low:+.1f} to {high:+.1f} points; p = {right.p_value:.2g}), "
                f"loss {loss.plain:.3f} -> {loss.policy:.3f} (p = {loss.p_value:.2g})"
            )
    for name, found in judgement["text"].items():
        low, high = map(math.expm1, Paired.from_json(found).interval)
        ends = "one window: no interval" if math.isinf(high) else f"{low:+.2%} to {high:+.2%}; {found['items']} windows"
        print(f"{_spelled(name)}: perplexity {found['perplexity_rise']:+.2%} ({ends})")
    print("in brackets: 95 % intervals of the differences")
    print(f"reading takes {metrics['time_ratio']:.2f}x as long with the policy (medians of {TURNS} turns)")
    judged, most_rise, card = Judgement.from_json(judgement), metrics["most_rise"], metrics["card"]
    verdict, allowed = judged.verdict(most_rise), f"the allowed {most_rise:+.2%}"
    if verdict == Verdict.GAINS:
        print(f"it gains; card: {card}")
    elif verdict == Verdict.UNDECIDED:
        places = ", ".join(_spelled(name_of(*key)) for key in judged.undecided(most_rise))
        print(f"undecided: answers gain; whether perplexity rises within {allowed} cannot be told of {places}")
        print(f"more text would tell (--text-tokens); {'no card was written' if card is None else f'card: {card}'}")
    else:
        what_follows = "no card was written" if card is None else f"better without {card}"
        print(f"it does not gain with perplexity within {allowed}; {what_follows}")


def _spelled(name: str) -> str:
    """Return what `name_of` named, in words."""
    kind, _, window = name.rpartition(" ")
    return f"{kind or TEXT} in windows of {window}"


_Fit = Callable[[Path], tuple[PerLayer, dict[str, list[float]]]]
"""What fits a policy, given a file to keep its state in, and returns it with how the fit went."""


def _matching(loaded: LoadedModel, exam: Mapping[str, Any]) -> _Fit:
    """Return what matches, or raise ValueError where there is too little to match on."""
    text = _cut(loaded, text_of("fit", exam.get("text")), exam.get("text_tokens", TEXT_TOKENS))
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


def _judged(loaded: LoadedModel, choice: Choice, exam: Exam, most_rise: float) -> dict[str, Any]:
    if choice.policy is None:
        return {"judgement": None, "verdict": Verdict.NO_GAIN}
    judgement = compare(sit(loaded, exam), sit(loaded, exam, choice.policy))
    return {
        "judgement": judgement.to_json(),
        "time_ratio": time_ratio(loaded, exam, choice.policy),
        "most_rise": most_rise,
        "worst_rise": judgement.worst_rise,
        "undecided": [name_of(*key) for key in judgement.undecided(most_rise)],
        "verdict": judgement.verdict(most_rise),
    }


def _card(loaded: LoadedModel, policy: Policy, config: dict[str, Any], metrics: dict[str, Any]) -> Card:
    data = f"{', '.join(config['fit_tasks'])} of size {config['fit_sizes']}, seed {config['seed']}"
    notes = f"{config['method']}: {metrics['chosen']}; verdict: {metrics['verdict']}"
    return Card(policy, loaded.name, data, held_out=metrics["judgement"], notes=notes)


def _cut(loaded: LoadedModel, text: str, tokens: int) -> str:
    """Return about the first `tokens` tokens of a text; every token is at least a character."""
    ids = loaded.tokens(text[: 8 * tokens], special=False)[0]
    return str(loaded.tokenizer.decode(ids[:tokens])) if len(ids) > tokens else text[: 8 * tokens]


def _loaded(model: str | LoadedModel, accept_license: bool, device: str | None) -> LoadedModel:
    loaded = model if isinstance(model, LoadedModel) else load(model, accept_license=accept_license, device=device)
    if not loaded.generates:
        raise ValueError(f"{loaded.name} is not a causal language model: there are no answers to calibrate it on")
    return loaded
