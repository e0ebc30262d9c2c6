"""Forecast the heads of real models from short windows of text, and compare with long windows they did not see.

Every setting reads many short windows (from the held-out split of its text) and some long ones, at other places. What
is fitted sees the short ones alone. Compared over heads, paired: law, persistence, line, and the crowd in full.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from sharpmax.dispersion import Dispersion
from sharpmax.dispersion.crowd import mean_of_rows
from sharpmax.dispersion.forecast import (
    CHANCE,
    COVERED,
    METHODS,
    ORDERED,
    TIMES,
    Rehearsal,
    exponents,
    predict,
    rehearse,
)
from sharpmax.dispersion.rates import rank_correlation
from sharpmax.dispersion.record import json_values
from sharpmax.experiments.laws.ceiling import ceiling
from sharpmax.extras import extra
from sharpmax.runs.progress import Advance
from sharpmax.statistics import paired

with extra("hf"):
    import torch

    from sharpmax.core.policies import Constant
    from sharpmax.hf.calibration.splits import KINDS
    from sharpmax.hf.diagnosis.heads import layer_names
    from sharpmax.hf.diagnosis.probe import RowProbe
    from sharpmax.hf.models.load import LoadedModel, load
    from sharpmax.hf.sharpen.switch import sharpen
    from sharpmax.tasks.prompts import draw

GERMLINES = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCA",
    "QVQLVQSGAEVKKPGASVKVSCKASGYTFTSYYMHWVRQAPGQGLEWMGIINPSGGSTSYAQKFQGRVTMTRDTSTSTVYMELSSLRSEDTAVYYCAR",
    "QVQLQESGPGLVKPSETLSLTCTVSGGSISSYYWSWIRQPPGKGLEWIGYIYYSGSTNYNPSLKSRVTISVDTSKNQFSLKLSSVTAADTAVYYCAR",
    "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYWMSWVRQAPGKGLEWVANIKQDGSEKYYVDSVKGRFTISRDNAKNSLYLQMNSLRAEDTAVYYCAR",
)
REACTIONS = (
    "CC(=O)Cl.OCC>>CCOC(C)=O",
    "Brc1ccccc1.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1",
    "CC(=O)O.CCN>>CCNC(C)=O",
    "O=Cc1ccccc1.CN>>CNCc1ccccc1",
    "COC(=O)c1ccccc1.O>>O=C(O)c1ccccc1",
    "CCBr.Oc1ccccc1>>CCOc1ccccc1",
    "O=C(Cl)c1ccccc1.NC1CCCCC1>>O=C(NC1CCCCC1)c1ccccc1",
    "CS(=O)(=O)Cl.Nc1ccccc1>>CS(=O)(=O)Nc1ccccc1",
)


@dataclass(frozen=True)
class Setting:
    """One model on one kind of text: the lengths fitted, and a target 8 times the longest of them.

    Attributes:
        text: "source" or "docstrings" (Python's and NumPy's), "reactions", "chains"; a task of prompts, whose lengths
            are items; "tables", whose lengths are rows with a known class.
        windows, targets: how many short and long ones; `rows` are observed in each, at each length.
        between: lengths between that are recorded and not used.
        beta: of a constant temperature that is on in every head.
    """

    model: str
    text: str
    fitted: tuple[int, ...]
    target: int
    windows: int = 24
    targets: int = 12
    rows: int = 8
    between: tuple[int, ...] = ()
    beta: float = 1.0

    @property
    def name(self) -> str:
        """What the record calls it."""
        return f"{self.model}-{self.text}" + (f"-beta{self.beta:g}" if self.beta != 1 else "")


SETTINGS = (
    Setting("minilm", "source", (16, 32, 64), 512, between=(128, 256)),
    Setting("minilm", "docstrings", (16, 32, 64), 512, between=(128, 256)),
    Setting("rxnmapper", "reactions", (16, 32, 64), 512, between=(128, 256)),
    Setting("smollm2", "source", (64, 128, 256, 512), 4096, targets=6, between=(1024, 2048)),
    Setting("smollm2", "docstrings", (64, 128, 256, 512), 4096, targets=6, between=(1024, 2048)),
    Setting("antiberty", "chains", (8, 11, 15), 120, between=(30, 60)),
    Setting("iglm", "chains", (8, 11, 15), 120, between=(30, 60), rows=4),
    Setting("minilm", "source", (16, 32, 64), 512, between=(128, 256), beta=1.5),
    Setting("smollm2", "maximum", (4, 8, 16), 128, windows=32, targets=16, rows=1),
    Setting("tabpfn", "tables", (32, 64, 128), 1024, between=(256, 512)),
)


@torch.no_grad()
def measure(setting: Setting, *, seed: int, advance: Advance) -> Dispersion:
    """Read the windows of a setting, and return what its heads did at every length, with their rows."""
    loaded = load(setting.model, accept_license=True)
    probe, current = None, [0]
    if setting.text == "maximum":
        probe = RowProbe(lambda queries: torch.tensor([queries - 1]), lambda _: current[0], keep=True)
    elif loaded.generates:
        lengths = sorted((*setting.fitted, *setting.between, setting.target))
        probe = RowProbe(
            lambda queries: torch.cat([_last(n, setting.rows) for n in lengths if n <= queries]),
            lambda index: np.asarray(lengths)[np.searchsorted(lengths, index + 1)],
            keep=True,
        )
    else:
        probe = RowProbe(
            lambda queries: torch.linspace(0, queries - 1, setting.rows).long(), lambda _: current[0], keep=True
        )

    def sharpened(layer: int, query: Any, key: Any, options: dict[str, Any]) -> None:
        probe(layer, setting.beta * query, key, options)  # what the row is after the temperature

    with sharpen(loaded.model, Constant(setting.beta), probe=sharpened):
        for length, ids in _windows(loaded, setting, seed):
            current[0] = length
            if loaded.generates:
                loaded.model.base_model(input_ids=ids, use_cache=False)
            else:
                loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids))
            advance(ids.shape[1])
    return probe.dispersion(layer_names(loaded))


def tokens_of(setting: Setting) -> int:
    """Return about how many tokens a setting reads."""
    return setting.windows * sum(setting.fitted) + setting.targets * setting.target


def judged(setting: Setting, found: Dispersion, *, seed: int) -> dict[str, Any]:
    """Return the record of one setting: errors of each method over heads, paired tests, rates, layers, intervals."""
    made = rehearse(found)
    assert made is not None
    errors = {name: made.errors(name) for name in METHODS}
    tests = {name: paired(errors[name].tolist(), errors["law"].tolist()) for name in ("persistence", "line")}
    fitted = sum(length <= made.fitted for length in found.lengths)
    layers = np.isfinite(made.found_entropy).any(axis=1)
    order, rates = {}, {}
    for name, values in made.entropy.items():
        said, actual = (mean_of_rows(heads)[layers] for heads in (values, made.found_entropy))
        before = mean_of_rows(made.entropy["persistence"])[layers]
        order[name] = rank_correlation(said, actual)
        rates[name] = rank_correlation(said - before, actual - before)
    weight = {
        name: float(np.nanmean(np.abs(np.log(values / made.found_weight))))
        for name, values in made.largest_weight.items()
    }
    return {
        **made.to_json(),
        "setting": setting.name,
        "heads": int(errors["law"].size),
        "lengths": list(found.lengths),
        "mean_entropy": [float(v) for v in np.nanmean(found.entropy, axis=(0, 1))],
        "against": {name: test.to_json() for name, test in tests.items()},
        "layer_order": order,
        "layer_rates": rates,
        "weight_log_error": weight,
        "noise": _noise(found, made),
        "exponents": np.nanquantile(exponents(found, fitted), [0.1, 0.5, 0.9]).tolist(),
        "ceiling": ceiling(found, made, seed=seed),
        "coverage": _coverage(found, fitted, made, seed),
        "by_times": by_times(found),
        "spread": json_values(np.nanmean(found.values["spread"], axis=1)),
        "entropy_by_layer": json_values(np.nanmean(found.entropy, axis=1)),
        "entropy": json_values(found.entropy),
        "forecast": {name: json_values(values) for name, values in made.entropy.items()},
    }


def by_times(found: Dispersion) -> list[dict[str, Any]]:
    """Return the mean error of each method for every pair of lengths 2 to 32 times apart, fitted on two or more."""
    cases = []
    for fitted in range(2, len(found.lengths)):
        for index, target in enumerate(found.lengths[fitted:], fitted):
            times = target / found.lengths[fitted - 1]
            if times in TIMES:
                said = dict(zip(METHODS, predict(found, fitted, target), strict=True))
                error = {
                    name: float(np.nanmean(np.abs(H - found.entropy[..., index]))) for name, (H, _) in said.items()
                }
                cases.append({"times": int(times), "fitted_up_to": found.lengths[fitted - 1], "error": error})
    return cases


def holds(record: dict[str, Any]) -> bool:
    """Tell whether the law's error is below persistence's and the line's, both at p < 0.05 (Holm), and orders rates."""
    error = record["mean_absolute_error"]
    better = all(error["law"] < error[name] for name in record["p"])
    surely = all(p is not None and p < CHANCE for p in record["p"].values())
    return better and surely and bool(record["rate_agreement"]["law"] >= ORDERED)


def _windows(loaded: LoadedModel, setting: Setting, seed: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (length, ids): a causal model reads each window once, and every shorter length lies in it."""
    rng = random.Random(f"{seed}-{setting.name}")
    if setting.text == "maximum":
        for size in (*setting.fitted, setting.target):
            for index in range(setting.windows if size in setting.fitted else setting.targets):
                yield size, loaded.tokens(draw("maximum", size, seed=seed, index=index).text)
        return
    plan = [(setting.fitted, setting.windows), ((*setting.between, setting.target), setting.targets)]
    for lengths, count in plan:
        for _ in range(count):
            ids = window_of(loaded, setting.text, lengths[-1], rng)
            if loaded.generates:
                yield lengths[-1], ids[:, : lengths[-1]]
            else:
                # The end marker belongs to the text: an encoder sees it at every length.
                yield from ((n, torch.cat([ids[:, : n - 1], ids[:, -1:]], dim=1)) for n in lengths)


def window_of(loaded: LoadedModel, text: str, length: int, rng: random.Random) -> torch.Tensor:
    """Return the ids of a text of at least `length` tokens that begins at a line, a reaction or a chain."""
    if text == "reactions":
        return loaded.tokens(".".join(rng.choice(REACTIONS) for _ in range(length // 8 + 2)))
    if text == "chains":
        loop = "".join(rng.choice("ADEFGHIKLNPRSTVWY") for _ in range(rng.randint(8, 14)))
        return loaded.tokens(rng.choice(GERMLINES) + loop + "YWGQGTLVTVSSASTKGPSV")
    body = _body(text)
    start = body.index("\n", rng.randrange(max(1, len(body) - 8 * length))) + 1
    ids = loaded.tokens((body[start:] + "\n" + body)[: 10 * length])
    if ids.shape[1] < length:
        raise ValueError(f"expected a window of {length} tokens of {text}, got {ids.shape[1]}")
    return ids


@cache
def _body(text: str) -> str:
    return KINDS[text]("report")


def _last(length: int, rows: int) -> torch.Tensor:
    return torch.linspace(round(0.94 * length) - 1, length - 1, min(rows, max(1, length // 16))).round().long()


def _noise(found: Dispersion, made: Rehearsal) -> float:
    """Return the mean error of the target's own measurement: half the difference of its two halves of windows."""
    assert found.observed is not None
    rows = found.observed[made.target].entropy
    middle = rows.shape[-1] // 2
    halves = mean_of_rows(rows[..., :middle]) - mean_of_rows(rows[..., middle:])
    return float(np.nanmean(np.abs(halves)) / 2)


def _coverage(found: Dispersion, fitted: int, made: Rehearsal, seed: int) -> dict[str, float]:
    """Return how many heads an interval of 80 % holds: of one half's errors on the other half, and a bootstrap's."""
    assert found.observed is not None
    error = np.abs(made.entropy["law"] - made.found_entropy)
    rows, rng = found.observed[found.lengths[fitted - 1]], np.random.default_rng(seed)
    heads = rng.permutation(np.flatnonzero(np.isfinite(error)))
    half, rest = np.array_split(heads, 2)
    reach = np.quantile(error.ravel()[half], COVERED)
    kappa, times = exponents(found, fitted), made.target / made.fitted
    count = rows.entropy.shape[-1]
    samples = rng.integers(count, size=(100, count))
    again = [mean_of_rows(rows.drawn(sample).grown(times, kappa)[0]) for sample in samples]
    low, high = np.quantile(again, [(1 - COVERED) / 2, (1 + COVERED) / 2], axis=0)
    inside = (low <= made.found_entropy) & (made.found_entropy <= high)
    return {
        "rehearsal": float(np.mean(error.ravel()[rest] <= reach)),
        "bootstrap": float(inside.ravel()[heads].mean()),
    }
