"""The laws of dispersion: how fast attention disperses, from which distribution, and a forecast of real heads.

Claims, each with its own steps in the run folder:

    checks        expectations by quadrature and by formula are those of drawn rows, from 100 to 10,000,000 items
    policies      which temperature rule keeps which law sharp: SSMax a needle; a crowd needs beta ∝ n^(1/a)
    trained       one bounded law per head, fitted at 16 to 256 items, gives the entropy of max retrieval to 16,384
    heads         real heads at 8 times the length read, forecast better than by persistence and by a line
    depth         with n one item moves the features of the last row less and less, in every layer
    small         the same in small Transformers trained here, on a finite set of tokens: the theorem's own setting

Cost: the first three minutes on two cores, `small` two more; a setting of SmolLM2 some ten. `quick`
draws fewer rows and reads MiniLM alone.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax.experiments.laws import monte_carlo, policies, trained_heads
from sharpmax.flags import require_among
from sharpmax.runs.committed import committed_metrics
from sharpmax.runs.progress import stage
from sharpmax.runs.run_folder import RunFolder, read_metrics, scale_name

PARTS = ("checks", "policies", "trained", "heads", "depth", "small")
DEPTH = {
    "minilm-source": (16, 32, 64, 128, 256, 512),
    "iglm-chains": (8, 15, 30, 60, 120),
    "smollm2-source": (32, 128, 512),
}


def run(
    out: str | Path = "runs",
    *,
    seed: int = 0,
    quick: bool = False,
    settings: Sequence[str] = (),
    only: Sequence[str] = (),
) -> dict[str, Any]:
    """Compute, draw and write the page, in `out/laws/<full or quick>-seed<seed>/`; returns the metrics.

    The options are those of `sharpmax reproduce laws --help`. Settings of restricted licences run only if named. Parts
    that the folder has already are told too.

    Raises:
        ValueError: a setting or a part that there is not.
    """
    chosen = tuple(only) or PARTS
    require_among("parts", chosen, PARTS)
    names = _settings(settings, quick=quick)
    config = {"seed": seed, "settings": names}
    folder = RunFolder.open(out, "laws", scale_name(quick, seed), config, grows="settings")
    kept = read_metrics(folder.path) or {}  # of parts that an earlier call computed
    metrics: dict[str, Any] = {part: kept[part] for part in PARTS if part in kept}
    parts: dict[str, Callable[[], Any]] = {
        "checks": partial(_checks, folder, seed, quick),
        "policies": partial(_policies, folder, seed, quick),
        "trained": partial(_trained, folder, quick),
        "heads": partial(_heads, folder, names, seed),
        "depth": partial(_depth, folder, names, seed, quick),
        "small": partial(_small, folder, seed, quick),
    }
    metrics |= {part: compute() for part, compute in parts.items() if part in chosen}
    folder.finish(metrics)
    from sharpmax.experiments.laws.page import tell

    tell(metrics, folder)
    return metrics


def _checks(folder: RunFolder, seed: int, quick: bool) -> dict[str, Any]:
    sizes = monte_carlo.SIZES[:3] if quick else monte_carlo.SIZES
    rows = {n: 400 if quick else 4000 if n < 10**4 else 2000 for n in sizes}
    steps = {
        f"check-{_plain(name)}-{n}": partial(_check, name, n, rows=rows[n], seed=seed)
        for name, n in product(monte_carlo.LAWS, sizes)
    }
    cases = list(chain(*folder.every("laws against drawn rows", steps)))
    return {"cases": cases, "worst": monte_carlo.worst(cases)}


def _check(name: str, n: int, *, rows: int, seed: int) -> list[dict[str, Any]]:
    return [monte_carlo.checked(name, n, times, rows=rows, seed=seed + n) for times in monte_carlo.TIMES]


def _policies(folder: RunFolder, seed: int, quick: bool) -> dict[str, Any]:
    cases = list(product(policies.SHAPES, policies.SIZES))
    rows = 16 if quick else 200
    steps = {
        f"policies-{_plain(name)}-{n}": partial(policies.judged, name, n, rows=rows, seed=seed) for name, n in cases
    }
    table: dict[str, Any] = {name: {} for name in policies.SHAPES}
    for (name, n), found in zip(cases, folder.every("policies on each law", steps), strict=True):
        table[name][str(n)] = found
    return {"table": table, "holds": policies.verdicts(table)}


def _trained(folder: RunFolder, quick: bool) -> dict[str, Any] | None:
    record = committed_metrics("max-retrieval", "paper")
    if record is None:  # an installed package has no results
        return None
    heads = range(1 if quick else record["seeds"])
    steps = {f"trained-{head}": partial(trained_heads.forecast_head, record, head) for head in heads}
    found = folder.every("max-retrieval heads", steps)
    return {"heads": found, **trained_heads.summary(found)}


def _heads(folder: RunFolder, names: list[str], seed: int) -> dict[str, Any]:
    from sharpmax.experiments.laws import heads, table_heads

    by_name = {setting.name: setting for setting in heads.SETTINGS}
    with stage("forecasting heads", sum(heads.tokens_of(by_name[name]) for name in names)) as advance:
        found = {}
        for name in names:
            setting = by_name[name]

            def work(setting: heads.Setting = setting) -> dict[str, Any]:
                measure = table_heads.measure if setting.text == "tables" else heads.measure
                return heads.judged(setting, measure(setting, seed=seed, advance=advance), seed=seed)

            found[name] = folder.once(f"heads-{name}", work)
    return {"settings": found, "holds": {name: heads.holds(record) for name, record in found.items()}}


def _depth(folder: RunFolder, names: list[str], seed: int, quick: bool) -> dict[str, Any]:
    from sharpmax.experiments.laws import depth, heads

    by_name, found = {setting.name: setting for setting in heads.SETTINGS}, {}
    windows = 2 if quick else 8
    chosen = [name for name in DEPTH if name in names]
    total = sum((1 + depth.REPLACED) * windows * sum(DEPTH[name]) for name in chosen)
    with stage("the influence of one item", total) as advance:
        for name in chosen:

            def work(name: str = name) -> dict[str, Any]:
                moved = depth.influence(by_name[name], DEPTH[name], windows, seed=seed, advance=advance)
                return {
                    "lengths": list(DEPTH[name]),
                    "influence": np.round(moved, 9).tolist(),
                    "slopes": depth.slopes(DEPTH[name], moved),
                }

            found[name] = folder.once(f"depth-{name}", work)
    return found


def _small(folder: RunFolder, seed: int, quick: bool) -> dict[str, Any]:
    from sharpmax.experiments.laws import small

    lengths = small.LENGTHS[:3] if quick else small.LENGTHS

    def work() -> dict[str, Any]:
        params = small.trained(folder.path / "training", steps=20 if quick else 400, seed=seed)
        with stage("the influence of one token in small Transformers", sum(lengths)) as advance:
            return small.measured(params, lengths, 2 if quick else 16, seed=seed, advance=advance)

    found: dict[str, Any] = folder.once("small", work)
    return found


def _settings(settings: Sequence[str], *, quick: bool) -> list[str]:
    from sharpmax.builtin import BUILTIN
    from sharpmax.experiments.laws.heads import SETTINGS

    names = [setting.name for setting in SETTINGS]
    require_among("settings", settings, names)
    free = [s.name for s in SETTINGS if s.model not in BUILTIN or not BUILTIN[s.model].restricted]
    return list(settings) or (["minilm-source"] if quick else free)


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.replace("½", "half")).strip("-")
