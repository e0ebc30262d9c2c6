"""Measure which heads of a model disperse, how fast, and which layers most: `sharpmax diagnose`.

Claim (the paper's figure of Gemma, and its table of spreads): heads that are sharp on short inputs disperse on longer
ones. Expected: entropy that rises with log n in most heads. The order of the layers at the longest length is forecast
from the shorter ones, and held against persistence, the order at the length before, which often does as well.
Cost: about one forward pass of the longest text; no matrix of all weights is ever formed.
"""

import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax import defaults
from sharpmax.dispersion import Dispersion, fit_decay
from sharpmax.dispersion.rates import fastest_losing, sharpest
from sharpmax.hf.diagnosis.heads import diagnose_prompts, diagnose_text, source_code
from sharpmax.hf.models.load import LoadedModel, load
from sharpmax.report.curves import Curve, CurvesDisplay
from sharpmax.report.dispersion import write_dispersion_page
from sharpmax.report.page import Table
from sharpmax.runs.provenance import provenance
from sharpmax.runs.run_folder import RunFolder, run_name, stored_config
from sharpmax.tasks.prompts import draw
from sharpmax.tasks.text_files import read_texts

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
SIZES = (4, 8, 16, 32, 64, 128)
PROMPTS = 8


def diagnose(
    model: str,
    *,
    texts: Sequence[str | Path] = (),
    task: str | None = None,
    lengths: Sequence[int] = (),
    out: str | Path = defaults.OUT,
    seed: int = defaults.SEED,
    rows: int = defaults.ROWS,
    device: str | None = None,
    accept_license: bool = False,
) -> dict[str, Any]:
    """Diagnose a model on texts, or on prompts of a task, and write JSON, figures and one interactive page.

    Args:
        model: a built-in name, a local folder or a hub name.
        texts: files to read one after the other; Python's own source code unless given (and no task is).
        task: maximum, lookup, needle or copy, instead of text; lengths are then the number of items.
        lengths: what to measure at; those that fit the model and the text unless given. To them come those of the run
            that the folder holds already: it is measured anew, at all of them.
        rows: query rows observed at each length.
        device: where to run; the processor unless given.

    Returns:
        The metrics, which `out/diagnose/<model>-<source>/metrics.json` holds too.
    """
    if task is not None and texts:
        raise ValueError("expected texts or a task, got both")
    if seed < 0:
        raise ValueError(f"expected a seed of at least 0, got {seed}")
    if lengths and min(lengths) < 1:
        raise ValueError(f"expected lengths above 0, got {list(lengths)}")
    prompts = {} if task is None else _prompts(task, sorted(set(lengths)) or list(SIZES), seed)
    text = read_texts(texts) if texts else source_code()
    loaded = load(model, accept_license=accept_license, device=device)
    name = f"{run_name(model)}-{task or ('text' if texts else 'code')}".replace(":", "-")
    before = stored_config(Path(out) / "diagnose" / name) or {}
    chosen = sorted({*(lengths or prompts or _lengths_of(loaded, text)), *before.get("lengths", ())})
    config = {
        "seed": seed,
        "model": model,
        "task": task,
        "lengths": chosen,
        "rows": rows,
        "texts": list(map(str, texts)),
    } | ({} if device is None else {"device": device})
    place = (out, "diagnose", name, config)
    RunFolder.planned(*place, grows="lengths")
    began = time.perf_counter()
    if task is None:
        found, unit, source = diagnose_text(loaded, text, chosen, rows=rows), "tokens", text
    else:
        prompts = _prompts(task, chosen, seed)
        found, unit, source = diagnose_prompts(loaded, prompts), "items", prompts[chosen[0]][0]
    cost = {
        "seconds": round(time.perf_counter() - began, 2),
        "peak_gigabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 3),
    }
    folder = RunFolder.open(*place, grows="lengths")
    page = folder.path / "diagnosis.html"
    metrics = {**verdict(found), "unit": unit, "cost": cost, "page": str(page), "dispersion": found.to_json()}
    folder.finish(metrics)
    _tell(metrics, found, folder, model, source, unit)
    return metrics


def print_diagnosis(metrics: dict[str, Any]) -> None:
    """Print what a diagnosis found, in a few lines."""
    spread, cost = metrics["spread"], metrics["cost"]
    print(
        f"spread of the logits over all heads: {spread['min']:.2f} to {spread['max']:.2f}, "
        f"mean {spread['mean']:.2f} ± {spread['sd']:.2f}"
    )
    if "decay" in metrics:
        decay = metrics["decay"]
        if decay["layer_agreement"] is not None:
            print(
                f"layers most dispersed at {decay['held_out_length']} {metrics['unit']}: forecast "
                f"{decay['layers_predicted'][:5]}, found {decay['layers_actual'][:5]} "
                f"(rank correlation {decay['layer_agreement']:.2f})"
            )
            print(_beside_persistence(decay))
        losing = ", ".join(f"{h['layer']}.{h['head']} ({h['rate']:.2f})" for h in metrics["fastest_losing"][:5])
        print(f"heads losing sharpness fastest (layer.head, dH/d log n): {losing}")
    print(f"{cost['seconds']} s, peak memory {cost['peak_gigabytes']} GB")
    print(f"page: {metrics['page']}")


def verdict(found: Dispersion) -> dict[str, Any]:
    """Rank the heads, fit the rates, check the forecast, and summarise the spreads."""
    verdict: dict[str, Any] = {"spread": found.spread_summary(), "sharpest": sharpest(found)}
    if len(found.lengths) >= 3:
        fit = fit_decay(found)
        verdict |= {"decay": fit.to_json(), "fastest_losing": fastest_losing(found, fit)}
    return verdict


def _tell(metrics: dict[str, Any], found: Dispersion, folder: RunFolder, model: str, source: str, unit: str) -> None:
    _entropy_figure(found, model, unit).save(folder.figures, "entropy")
    origin = provenance()
    spread = metrics["spread"]
    write_dispersion_page(
        Path(metrics["page"]),
        metrics["dispersion"],
        title=f"How the heads of {model} disperse",
        lead=(
            f"{_count(found.entropy.shape[0], 'layer')}, {_count(found.entropy.shape[1], 'head')}, {found.lengths[0]} "
            f"to {found.lengths[-1]} {unit}. The logits of a head spread over {spread['min']:.2f} to "
            f"{spread['max']:.2f}, mean {spread['mean']:.2f} ± {spread['sd']:.2f}. Click a head to see its curve."
        ),
        source=source[:1500],
        unit=unit,
        tables=_tables(metrics),
        footer=f"{origin['command']} · {origin['device']} · {metrics['cost']['seconds']} s · commit {origin['commit']}",
    )


def _entropy_figure(found: Dispersion, model: str, unit: str) -> CurvesDisplay:
    """Return entropy against length: each layer's mean, and the range of its heads."""
    H = found.entropy
    ran = np.flatnonzero(np.isfinite(H).any(axis=(1, 2)))  # on text the layers of images do not
    shown = sorted({int(ran[round(i)]) for i in np.linspace(0, len(ran) - 1, min(len(ran), 5))})
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
    curves.append(Curve("log n keys: all alike", found.lengths, most.tolist(), color="#8c959f", line=":"))
    return CurvesDisplay(curves, unit, "entropy (nats)", f"{model}: mean of each layer, range of its heads")


def _tables(metrics: dict[str, Any]) -> list[Table]:
    tables = [_heads_table(metrics["sharpest"], "relative_entropy", "Sharpest at the shortest length", "H / log n")]
    if "decay" in metrics:
        decay = metrics["decay"]
        tables.append(_heads_table(metrics["fastest_losing"], "rate", "Losing it fastest", "dH / d log n"))
        if decay["layer_agreement"] is None:
            return tables
        order = [[i + 1, p, a] for i, (p, a) in enumerate(_first(decay["layers_predicted"], decay["layers_actual"]))]
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
        f"persistence (the order at the length before): rank correlation {decay['persistence_agreement']:.2f}, "
        f"{verdict}; mean error of a head's entropy: forecast {decay['mean_absolute_error']:.2f} nats, persistence "
        f"{decay['persistence_error']:.2f}; fitted rates against found ones: rank correlation "
        f"{decay['rate_agreement']:.2f}"
    )


def _heads_table(heads: list[dict[str, Any]], key: str, caption: str, name: str) -> Table:
    header = ["layer", "head", name, "entropy, shortest", "entropy, longest"]
    return Table(
        header,
        [
            [h["layer"], h["head"], f"{h[key]:.3f}", f"{h['entropy_short']:.2f}", f"{h['entropy_long']:.2f}"]
            for h in heads
        ],
        caption,
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _first(*orders: list[int], most: int = 8) -> list[tuple[int, ...]]:
    return list(zip(*(order[:most] for order in orders), strict=True))


def _prompts(task: str, sizes: Sequence[int], seed: int) -> dict[int, list[str]]:
    return {n: [draw(task, n, seed=seed, index=i).text for i in range(PROMPTS)] for n in sizes}


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
