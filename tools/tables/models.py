"""Tables of what was found in the built-in models: spreads, which layers disperse first, certificates, losses."""

from typing import Any

import numpy as np
from scipy.stats import spearmanr

from tools.tables.records import markdown, read, table

READ = {
    "smollm2-code": "source code",
    "smollm2-maximum": "the maximum prompt",
    "minilm-code": "source code",
    "rxnmapper-text": "`reactions.txt`",
    "antiberty-text": "`chain.txt`",
    "iglm-text": "`chain.txt`",
}
CERTIFIED = ("smollm2", "minilm", "rxnmapper", "antiberty", "iglm")


def diagnosis(name: str) -> dict[str, Any]:
    """Return what a committed diagnosis found."""
    return read("diagnose", name, "metrics.json")


def _model(name: str) -> str:
    return f"`{name.partition('-')[0]}`"


@table
def spreads() -> str:
    """Return the spread of the logits over the heads of each model."""
    rows = []
    for name, said in READ.items():
        found = diagnosis(name)
        spread = found["spread"]
        longest = f"{found['dispersion']['lengths'][-1]:,} {found['unit']}"
        ends = f"[{spread['min']:.2f}, {spread['max']:.2f}]"
        rows.append([_model(name), f"{said}, {longest}", ends, f"{spread['mean']:.2f} ± {spread['sd']:.2f}"])
    return markdown(["model", "read", "spread of a head", "mean ± sd"], rows)


def _forecast(name: str, held_out: int) -> dict[str, Any]:
    """Return how two forecasts of the layers' order fare: a line in log n, and the order at the length before."""
    record = diagnosis(name)["dispersion"]
    lengths = [n for n in record["lengths"] if n <= held_out]
    H = np.array(record["entropy"], dtype=float)[..., : len(lengths)]
    log_n = np.log(lengths)
    x = log_n[:-1] - log_n[:-1].mean()
    rate = (H[..., :-1] * x).sum(-1) / (x * x).sum()
    line = H[..., :-1].mean(-1) + rate * (log_n[-1] - log_n[:-1].mean())
    found, last = H[..., -1], H[..., -2]
    layers = {"line": line.mean(1), "same": last.mean(1), "found": found.mean(1)}
    return {
        "layers": {kind: np.argsort(-of, kind="stable")[:5].tolist() for kind, of in layers.items()},
        "line": float(spearmanr(layers["line"], layers["found"]).statistic),
        "same": float(spearmanr(layers["same"], layers["found"]).statistic),
        "rates": float(spearmanr(rate.ravel(), ((found - last) / (log_n[-1] - log_n[-2])).ravel()).statistic),
    }


@table
def forecasts() -> str:
    """Return both forecasts of which layers disperse first, and how well rates carry over."""
    rows, ahead = [], []
    for name, held_out in (("smollm2-code", 4096), *((name, 0) for name in READ)):
        unit, lengths = diagnosis(name)["unit"], diagnosis(name)["dispersion"]["lengths"]
        held_out = held_out or lengths[-1]
        found = _forecast(name, held_out)
        shown = [", ".join(map(str, found["layers"][kind])) for kind in ("line", "found")]
        figures = [f"{found[kind]:.3f}" for kind in ("line", "same")]
        ahead.append(figures[0] > figures[1])
        rows.append([_model(name), f"{held_out:,} {unit}", *shown, *figures, f"{found['rates']:.2f}"])
    header = ["model", "held-out length", "layers forecast", "layers found", "line in log n"]
    told = f"**The line is ahead of persistence in {sum(ahead)} of {len(rows)} rows**, never by much."
    return "\n\n".join([markdown([*header, "persistence", "rates of heads"], rows), f"{told}\n"])


@table
def certificates() -> str:
    """Return what the weights prove and what a text showed, for the median head."""
    rows = []
    for name in CERTIFIED:
        found = read("certify", name, "metrics.json")
        cells: list[object] = [f"`{name}`"]
        for kind in ("proved", "measured"):
            heads = [head for head in found["heads"] if head[f"{kind}_spread"] is not None]
            spread = float(np.median([head[f"{kind}_spread"] for head in heads]))
            size = float(np.median([head[f"{kind}_log10_n"]["0.5"] for head in heads]))
            places = 0 if kind == "proved" else 1
            cells += [f"{spread:.{places}f}", f"10^{size:.{places}f}"]
        rows.append([*cells, f"{100 * found['largest_share_of_bound']:.1f} %"])
    header = ["model", "proved spread, median", "proved n", "seen on text, median", "n with that spread"]
    return markdown([*header, "most of the bound used"], rows)


@table
def losses_unfitted() -> str:
    """Return what unfitted rules do to each model."""
    rows = []
    for each in read("unfitted", "losses.json")["results"]:
        values = each["values"]
        rows.append(
            [f"`{each['model']}`", each["score"], *(f"{values[key]:.3g}" for key in ("plain", "PAPER", "1.1", "0.9"))]
        )
    return markdown(["model", "score", "plain", "`PAPER`", "β = 1.1", "β = 0.9"], rows)


@table
def fastest_heads() -> str:
    """Return the heads of SmolLM2 that lose sharpness fastest on the maximum task."""
    found = diagnosis("smollm2-maximum")
    lengths = found["dispersion"]["lengths"]
    rows = [
        [f"{h['layer']}.{h['head']}", f"{h['rate']:.2f}", f"{h['entropy_short']:.2f}", f"{h['entropy_long']:.2f}"]
        for h in found["fastest_losing"][:5]
    ]
    header = ["layer.head", "dH/d log n", f"entropy at {lengths[0]} items", f"at {lengths[-1]} items"]
    return markdown(header, rows)


@table
def certificate_sizes() -> str:
    """Return the sizes beyond which no token of SmolLM2 can hold half: first head, median, all heads."""
    heads = read("certify", "smollm2", "metrics.json")["heads"]
    rows = []
    for kind, said in (("proved", "proved from the weights"), ("measured", "with the spread seen on 512 tokens")):
        spreads = [head[f"{kind}_spread"] for head in heads]
        for weight in ("0.5", "0.1", "0.01"):
            sizes = [head[f"{kind}_log10_n"][weight] for head in heads]
            ends = [f"10^{size:.1f}" for size in (min(sizes), float(np.median(sizes)), max(sizes))]
            rows.append([said, f"{min(spreads):.1f} to {max(spreads):.1f}", f"{float(weight):.0%}", *ends])
    return markdown(["", "spread", "weight", "first head", "half of the heads", "all heads"], rows)
