"""Measure which heads of a model disperse, how fast, and which layers most: `sharpmax diagnose`.

Claim (the paper's figure of Gemma, and its table of spreads): heads that are sharp on short inputs disperse on longer
ones. Expected: entropy that rises with log n in most heads. The order of the layers at the longest length is forecast
from the shorter ones, and held against persistence, the order at the length before, which often does as well.
Cost: about one forward pass of the longest text, under a minute for SmolLM2 on two cores; no matrix of all weights is
ever formed.
"""

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax import defaults
from sharpmax.cards import SHIPPED
from sharpmax.core.checks import is_count
from sharpmax.dispersion import Dispersion, fit_decay, forecast
from sharpmax.dispersion.forecast import CHANCE, ORDERED
from sharpmax.dispersion.rates import SHARP, fastest_losing, head_that_matters, sharpest, slope, some_head_is_sharp
from sharpmax.dispersion.record import json_values
from sharpmax.hf.calibration.answers import Answered, Question
from sharpmax.hf.diagnosis.heads import (
    checked_text,
    diagnose_prompts,
    diagnose_questions,
    diagnose_text,
    must_read_text,
    source_code,
    unwritten,
)
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.pace import SHARPENED, seconds_per_token
from sharpmax.hf.sharpen.layers import attention_layers
from sharpmax.hf.verbs.next_command import CALIBRATING, command, quick_exam_seconds
from sharpmax.hf.verbs.result import Result, loaded_model, must_be_list
from sharpmax.hf.verbs.sizes import advice, sizes_held, usual_sizes
from sharpmax.runs.progress import say_estimate, shown
from sharpmax.runs.provenance import provenance
from sharpmax.runs.run_folder import RunFolder, run_name, stored_config
from sharpmax.statistics import difference_of_shares
from sharpmax.tasks.prompt import Prompt
from sharpmax.tasks.prompts import draw
from sharpmax.tasks.text_files import read_texts

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)  # tokens; 8,192 take a processor three times as long as 4,096
SIZES = (4, 8, 16, 32, 64, 128)
ENOUGH = 32  # questions at each of two sizes: a fall by 30 points is then told from chance
TOO_FEW = "too few questions to tell"


@dataclass(frozen=True)
class DiagnosisResult(Result):
    """What every head does at every length: `dispersion`, and on questions whether answers are right."""

    dispersion: Dispersion
    source: str

    def summary(self) -> str:
        """Return the symptom, the head to look at and what it cost; the page has the rest."""
        cost, longest = self.metrics["cost"], self.metrics.get("readable")
        unread = [f"--lengths {longest} reads as far as the model and the text reach"] * (longest is not None)
        return "\n".join([*self._findings(), *unread, f"{cost['seconds']} s, peak memory {cost['peak_gigabytes']} GB"])

    def _findings(self) -> list[str]:
        """Return what matters most, a sentence each: the symptom, and the heads."""
        metrics, unit = self.metrics, self.metrics["unit"]
        lines = list(metrics.get("unwritten", ()))
        if right := metrics.get("right"):
            told = ", ".join(f"{found['share']:.0%} at {size}" for size, found in right.items())
            each = next(iter(right.values()))["questions"]
            lines.append(f"right answers by {unit}: {told} ({each} questions each)")
            lines += symptom(right, unit)
        if "matters" in metrics:
            h, shortest = metrics["matters"], self.dispersion.lengths[0]
            if not some_head_is_sharp(self.dispersion):
                lines.append(
                    f"no head is sharp at {shortest} {unit} (all have H / log n above {SHARP}): nothing to lose"
                )
            else:
                lines.append(
                    f"look first at head {h['layer']}.{h['head']} (layer.head): of the heads that are sharp at "
                    f"{shortest} {unit} its entropy rises most for how sharp it was, {h['entropy_short']:.2f} -> "
                    f"{h['entropy_long']:.2f} nats at {self.dispersion.lengths[-1]}; "
                    "other tasks and lengths may name another"
                )
        return lines

    def _beyond(self) -> list[str]:
        """Return the forecasts, how they fared, and the spreads: what the page folds away."""
        metrics = self.metrics
        lines = _forecast_lines(metrics.get("forecast"), self.dispersion, metrics["unit"])
        decay, spread = metrics.get("decay"), metrics["spread"]
        if decay is not None and decay["layer_agreement"] is not None:
            lines.append(
                f"layers most dispersed at {decay['held_out_length']} {metrics['unit']}: forecast "
                f"{decay['layers_predicted'][:5]}, found {decay['layers_actual'][:5]} "
                f"(rank correlation {decay['layer_agreement']:.2f})"
            )
            lines.append(_beside_persistence(decay))
        lines.append(
            f"spread of the logits over all heads: {spread['min']:.2f} to {spread['max']:.2f}, "
            f"mean {spread['mean']:.2f} ± {spread['sd']:.2f}"
        )
        return lines

    def next_step(self) -> str:
        """Return the command that tells whether a temperature helps, and how long it takes."""
        seconds = self.metrics.get("quick_exam_seconds")
        right = self.metrics.get("right") or {}
        few = right and next(iter(right.values()))["questions"] < ENOUGH
        if few and any(TOO_FEW in line for line in symptom(right, self.metrics["unit"])):
            ends = [int(size) for size in (*list(right)[:1], *list(right)[-1:])]
            more = {"task": self.metrics["task"], "lengths": ends, "prompts": ENOUGH}
            return command("diagnose", self.model, more, "does it get worse? more questions at the two ends")
        if self.model in SHIPPED:
            options = {"card": self.model, "quick": True}
            return command("evaluate", self.model, options, "what is the shipped card worth?", seconds)
        if not self.metrics["generates"] or not self.metrics.get("asked", True):
            return command("certify", self.model, {}, "what can be proved of each head")
        longer = None if seconds is None else CALIBRATING * seconds
        return command("calibrate", self.model, {"quick": True}, "does a temperature help?", longer)

    def display(self) -> Any:
        """Return entropy against length: each layer's mean, and the range of its heads."""
        return _entropy_figure(self.dispersion, self.model, self.metrics["unit"])

    def save_page(self, file: str | Path | None = None) -> Path:
        """Write the interactive page, and the figure of entropies beside it."""
        from sharpmax.report.dispersion import write_dispersion_page

        self.display().save(self.folder / "figures", "entropy")
        metrics, found, unit, origin = self.metrics, self.dispersion, self.metrics["unit"], provenance()
        spread = metrics["spread"]
        return write_dispersion_page(
            Path(file or metrics["page"]),
            metrics["dispersion"],
            title=f"How the heads of {self.model} disperse",
            lead=(
                f"{_count(found.entropy.shape[0], 'layer')}, {_count(found.entropy.shape[1], 'head')}, "
                f"{found.lengths[0]} to {found.lengths[-1]} {unit}. The spread of a head's logits (largest "
                f"less smallest) bounds how sharp it can stay: {spread['min']:.2f} to {spread['max']:.2f} over all "
                f"heads, mean {spread['mean']:.2f} ± {spread['sd']:.2f}. "
                f"{self._weights()}"
            ),
            source=self.source[:1500],
            unit=unit,
            rate=metrics.get("rate"),
            forecast=metrics.get("forecast"),
            chosen=(metrics["matters"]["layer"], metrics["matters"]["head"]) if "matters" in metrics else (0, 0),
            right={size: found["share"] for size, found in (metrics.get("right") or {}).items()},
            verdict=self._findings(),
            beyond=self._beyond(),
            next_step=self.next_step(),
            tables=_tables(metrics),
            footer=f"{origin['command']} · {origin['device']} · {metrics['cost']['seconds']} s · "
            f"commit {origin['commit']}",
        )


def diagnose(
    model: str | LoadedModel,
    *,
    texts: Sequence[str | Path] = (),
    task: str | None = None,
    lengths: Sequence[int] = (),
    out: str | Path = defaults.OUT,
    seed: int = defaults.SEED,
    rows: int | None = None,
    asked: int | None = None,
    device: str | None = None,
    accept_license: bool = False,
    quiet: bool = False,
) -> DiagnosisResult:
    """Diagnose a model on texts, or on prompts of a task: what every head does at every length.

    Args:
        model: a built-in name, a local folder, a hub name, or a loaded model.
        texts: files to read one after the other; Python's own source code unless given (and no task is).
        task: maximum, lookup, needle or copy, instead of text; lengths are then the number of items.
        lengths: what to measure at; those that fit the model and the text unless given. To them come those of the run
            that the folder holds already: it is measured anew, at all of them.
        rows: query rows of a text observed at each length, 64 unless given; of a prompt it is the last.
        asked: prompts of a task at each length, 8 unless given.
        device: where to run; the processor unless given.
        quiet: say nothing while it works.

    Returns:
        The result; `out/diagnose/<model>-<source>/metrics.json` holds its metrics too. Another number of prompts has a
        folder of its own.

    Raises:
        ValueError: no such model, device, task or file, or an option out of its range; before any work.
        NotImplementedError: a model that attends in a way that cannot be reached.

    >>> result = diagnose("smollm2", task="lookup", lengths=[4, 16, 64])  # doctest: +SKIP
    >>> result.save_page("diagnosis.html")  # doctest: +SKIP
    """
    if task is not None and texts:
        raise ValueError("expected texts or a task, got both")
    if seed < 0:
        raise ValueError(f"expected a seed of at least 0, got {seed}")
    if task is None and asked is not None:
        raise ValueError(f"prompts are of a task: name it (--task), or leave out the number of them, {asked}")
    if task is not None and rows is not None:
        raise ValueError(f"rows are of a text: of each prompt of {task} the last is read; leave out rows, {rows}")
    must_be_list("texts", texts)
    must_be_list("lengths", lengths)
    rows, asked = defaults.ROWS if rows is None else rows, defaults.ASKED if asked is None else asked
    if not is_count(asked, least=1):
        raise ValueError(f"expected asked of at least 1 prompt, got {asked!r}")
    if not is_count(rows, least=1):
        raise ValueError(f"expected 1 row or more to observe at each length, got {rows!r}")
    if not all(is_count(length, least=1) for length in lengths):
        raise ValueError(f"expected lengths above 0, got {list(lengths)}")
    prompts = {} if task is None else _prompts(task, sorted(set(lengths)) or list(SIZES), seed, asked)
    text = read_texts(texts) if texts else source_code()
    with shown(quiet=quiet):
        loaded = loaded_model(model, accept_license, device)
        name = f"{run_name(loaded.name)}-{task or ('text' if texts else 'code')}".replace(":", "-")
        if task is not None and asked != defaults.ASKED:  # beside the run with the usual number, which asks for more
            name = f"{name}-prompts{asked}"
        before = stored_config(Path(out) / "diagnose" / name) or {}
        if task is not None:
            must_read_text(loaded)
            if not lengths:
                prompts = {size: [] for size in usual_sizes(loaded, [task], SIZES, "--lengths")}
        chosen = sorted({*(lengths or prompts or _lengths_of(loaded, text)), *before.get("lengths", ())})
        config = {
            "seed": seed,
            "model": loaded.name,
            "task": task,
            "lengths": chosen,
            "rows": rows,
            "texts": list(map(str, texts)),
        } | ({} if device is None else {"device": device})
        if task is not None and asked != defaults.ASKED:
            config["asked"] = asked
        folder = RunFolder.planned(out, "diagnose", name, config, grows="lengths")
        attention_layers(loaded.model)  # refuses a family that cannot be reached, before a word is said
        answered: dict[int, list[Answered]] = {}
        began = time.perf_counter()
        if task is None:
            checked_text(loaded, text, chosen, rows)
            _estimate(loaded, chosen[-1])
            found, unit, source = diagnose_text(loaded, text, chosen, rows=rows), "tokens", text
        else:
            prompts = _prompts(task, chosen, seed, asked)
            _must_hold(loaded, task, prompts)
            _estimate(loaded, sum(len(prompt.text) for of in prompts.values() for prompt in of) // 4)
            unit, source = "items", prompts[chosen[0]][0].text
            if loaded.generates:
                questions: dict[int, list[Question]] = {
                    n: [(p.text, p.answer) for p in of] for n, of in prompts.items()
                }
                found, answered = diagnose_questions(loaded, questions)
            else:
                found = diagnose_prompts(loaded, {size: [p.text for p in of] for size, of in prompts.items()})
        cost = {
            "seconds": round(time.perf_counter() - began, 2),
            "peak_gigabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 3),
        }
        folder.begin()
        metrics = {
            **verdict(found),
            "unit": unit,
            "task": task,
            "cost": cost,
            "page": str(folder.path / "diagnosis.html"),
        }
        metrics |= {"right": _right(answered), "generates": loaded.generates, "unwritten": unwritten(loaded, source)}
        metrics |= {
            "asked": loaded.generates and bool(sizes_held(loaded, defaults.FIT_TASKS, [1])),
            "dispersion": found.to_json(),
        }
        if task is None and (readable := min(loaded.context, loaded.tokens(text).shape[1])) >= 2 * chosen[-1]:
            metrics["readable"] = 2 ** int(np.log2(readable))
        metrics["quick_exam_seconds"] = round(quick_exam_seconds(loaded)) if metrics["asked"] else None
        folder.finish(metrics)
    return DiagnosisResult(metrics, folder.path, loaded.name, found, source)


def verdict(found: Dispersion) -> dict[str, Any]:
    """Rank the heads, fit the rates, check the forecast, and summarise the spreads."""
    verdict: dict[str, Any] = {"spread": found.spread_summary(), "sharpest": sharpest(found)}
    if len(found.lengths) < 2:
        return verdict
    if found.observed is not None:
        verdict["forecast"] = forecast(found).to_json()
    rate = slope(found)
    if len(found.lengths) >= 3:
        fit = fit_decay(found)
        rate = fit.rate
        verdict["decay"] = fit.to_json()
    losing = fastest_losing(found, rate, rate.size)
    first = head_that_matters(found, rate)
    verdict["matters"] = next(h for h in losing if (h["layer"], h["head"]) == first)
    return verdict | {"rate": json_values(rate), "fastest_losing": losing[:10]}


def symptom(right: dict[str, Any], unit: str) -> list[str]:
    """Return whether answers get worse from the shortest to the longest size, with the interval of the difference."""
    if not right:
        return []
    (first, short), (last, long) = next(iter(right.items())), list(right.items())[-1]
    if first == last:
        return []
    counted = [(round(of["share"] * of["questions"]), of["questions"]) for of in (long, short)]
    low, high = difference_of_shares(*counted[0], *counted[1])
    change = long["share"] - short["share"]
    verdict = "worse with length" if high < 0 else "better with length" if low > 0 else TOO_FEW
    return [
        f"from {first} to {last} {unit}: {100 * change:+.0f} points ({100 * low:+.0f} to {100 * high:+.0f}), {verdict}"
    ]


def _forecast_lines(said: dict[str, Any] | None, found: Dispersion, unit: str) -> list[str]:
    """Return what the forecast says at 8 times the longest length, and how it fared where it was rehearsed."""
    if said is None:
        return []
    at = said["lengths"].index(8 * said["from_length"])
    now = np.nanmean(found.entropy[..., -1])
    then = np.nanmean(np.asarray(said["entropy"], dtype=np.float64)[..., at])
    tried = said["rehearsal"]
    if tried is None:
        return [f"no forecast beyond {said['from_length']} {unit}: it takes two lengths of at most 1/8 of the longest"]
    errors = tried["mean_absolute_error"]
    judged = (
        f"rehearsed from {tried['fitted_up_to']} to {tried['target']} {unit}: mean error of a head "
        f"{errors['law']:.2f} nats, persistence {errors['persistence']:.2f}, line {errors['line']:.2f}; rank "
        f"correlation of the heads' changes {tried['rate_agreement']['law']:.2f}"
    )
    if said["shown"] != "law":
        return [
            "the law of dispersion does not pass its rehearsal here (to beat persistence and the line at p < "
            f"{CHANCE:g}, rank correlation {ORDERED:g}); persistence is shown ({judged})"
        ]
    weight = found.values["largest_weight"][..., -1]
    size = np.asarray(said["half_size"], dtype=np.float64)
    falling = int(np.sum((weight >= 0.5) & (size <= 8 * said["from_length"])))
    return [
        f"forecast at {said['lengths'][at]:,} {unit}: mean entropy {now:.2f} -> {then:.2f} nats, and {falling} of "
        f"{int(np.sum(weight >= 0.5))} heads that give one token half of their weight no longer do ({judged})"
    ]


def _must_hold(loaded: LoadedModel, task: str, prompts: dict[int, list[Prompt]]) -> None:
    """Refuse a prompt that is too long before any is read."""
    for size, of in prompts.items():
        tokens = max(loaded.tokens(prompt.text + prompt.answer * loaded.generates).shape[1] for prompt in of)
        if tokens > loaded.context:
            raise ValueError(
                f"a question of {task} with {size} items has {tokens} tokens; {loaded.name} holds {loaded.context}"
                f"{advice(loaded, [task], list(prompts), '--lengths')}"
            )


def _right(answered: dict[int, list[Answered]]) -> dict[str, Any] | None:
    """Return the share of right answers at each size; None where nothing was asked."""
    return {
        str(size): {"share": sum(a.exact for a in of) / len(of), "questions": len(of)} for size, of in answered.items()
    } or None


def _estimate(loaded: LoadedModel, tokens: int) -> None:
    say_estimate(SHARPENED * seconds_per_token(loaded) * tokens, str(loaded.model.device))


def _entropy_figure(found: Dispersion, model: str, unit: str) -> Any:
    from sharpmax.report.curves import Curve, CurvesDisplay
    from sharpmax.report.style import GREY

    H = found.entropy
    ran = np.flatnonzero(np.isfinite(H).any(axis=(1, 2)))  # on text the layers of images do not
    shown = sorted({int(ran[round(i)]) for i in np.linspace(0, len(ran) - 1, min(len(ran), 3))})
    curves = [
        Curve(
            f"layer {layer}",
            found.lengths,
            np.nanmean(H[layer], axis=0).tolist(),
            np.nanmin(H[layer], axis=0).tolist(),
            np.nanmax(H[layer], axis=0).tolist(),
        )
        for layer in shown
    ]
    # Of keys, not of the lengths the rows are gathered by: an item of a prompt takes several tokens.
    keys = np.broadcast_to(found.lengths, H.shape[::2]) if found.keys is None else found.keys
    most = np.log(np.nanmax(keys[ran], axis=0))
    curves.append(Curve("log n keys: all alike", found.lengths, most.tolist(), color=GREY, line=":"))
    return CurvesDisplay(curves, unit, "entropy (nats)", f"{model}: mean of each layer, range of its heads")


def _tables(metrics: dict[str, Any]) -> list[Any]:
    from sharpmax.report.page import Table

    tables = [_heads_table(metrics["sharpest"], "relative_entropy", "Sharpest at the shortest length", "H / log n")]
    if "fastest_losing" in metrics:
        tables.append(
            _heads_table(metrics["fastest_losing"], "rate", "Highest rate, sharp at first or not", "dH / d log n")
        )
    if "decay" in metrics:
        decay = metrics["decay"]
        if decay["layer_agreement"] is None:
            return tables
        orders = zip(decay["layers_predicted"][:8], decay["layers_actual"][:8], strict=True)
        order = [[place, *pair] for place, pair in enumerate(orders, 1)]
        caption = (
            f"Layers most dispersed at {decay['held_out_length']}: forecast from the shorter lengths, and found. Rank "
            f"correlation {decay['layer_agreement']:.2f}. {_beside_persistence(decay)}"
        )
        tables.append(Table(["rank", "forecast layer", "found layer"], order, caption))
    return tables


def _beside_persistence(decay: dict[str, Any]) -> str:
    """Return how the forecast compares with the order of layers at the length before."""
    verdict = "the forecast beats it" if decay["beats_persistence"] else "the forecast does not beat it"
    return (
        f"Persistence (the order at the length before): rank correlation {decay['persistence_agreement']:.2f}, "
        f"{verdict}; mean error of a head's entropy: forecast {decay['mean_absolute_error']:.2f} nats, persistence "
        f"{decay['persistence_error']:.2f}; fitted rates against found ones: rank correlation "
        f"{decay['rate_agreement']:.2f}"
    )


def _heads_table(heads: list[dict[str, Any]], key: str, caption: str, name: str) -> Any:
    from sharpmax.report.page import Table

    header = ["head", name, "H, shortest", "H, longest"]  # four short columns: a phone shows them all
    rows = [
        [f"{h['layer']}.{h['head']}", f"{h[key]:.3f}", f"{h['entropy_short']:.2f}", f"{h['entropy_long']:.2f}"]
        for h in heads
    ]
    return Table(header, rows, caption)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _prompts(task: str, sizes: Sequence[int], seed: int, asked: int) -> dict[int, list[Prompt]]:
    return {n: [draw(task, n, seed=seed, index=i) for i in range(asked)] for n in sizes}


def _lengths_of(loaded: LoadedModel, text: str) -> list[int]:
    """Return the usual lengths that the model and the text hold."""
    tokens = loaded.tokens(text).shape[1]
    fitting = [length for length in LENGTHS if length <= min(loaded.context, tokens)]
    if not fitting:
        raise ValueError(
            f"the text has {tokens} tokens and {loaded.name} positions for {loaded.context}; the shortest usual length "
            f"is {LENGTHS[0]}: give a longer text, or --lengths"
        )
    return fitting
