"""What the paper says of CLRS-Text, sentence by sentence, and what the intervals of a run say to it: never more.

A difference one of whose intervals holds 0 is undecided, whatever its mean; and of a model that has not learned at the
trained lengths what it is asked beyond them, no sentence is said at all.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sharpmax.experiments.clrs_text.summary import verdicts, widest
from sharpmax.statistics import ENOUGH

EXCEPTIONS = ("heapsort", "mst_kruskal", "bubble_sort")
"""The algorithms on which the paper's adaptive temperature was not ahead (one good source)."""
LEARNED = 0.2
"""Exact answers at trained lengths below which a model has not learned what it is asked."""
NEARLY_ALL = 0.9
"""The share of the algorithms, but for those exceptions, that must be ahead for nearly all to be."""


class Claim(NamedTuple):
    """What the paper says, in one word whether it is seen here, and the numbers that this rests on."""

    paper: str
    seen: str
    here: str


def claims(metrics: Mapping[str, Any]) -> list[Claim]:
    """Return the paper's claims that the run's arms can be held against."""
    found: list[Claim] = []
    if "paper" in metrics["difference"]:
        spans = metrics["difference"]["paper"]
        found += [_ahead(spans["beyond"]), _most_beyond(spans), _exceptions(metrics, spans["beyond"])]
    if "plain+paper" in metrics["difference"]:
        found.append(_at_inference(metrics["difference"]["plain+paper"]))
    if has_learned(metrics):
        return found
    return [claim._replace(seen="cannot be told") for claim in found]


def has_learned(metrics: Mapping[str, Any]) -> bool:
    """Tell whether the plain model can do at the trained lengths what it is asked beyond them."""
    return exact_at_trained(metrics) > LEARNED


def exact_at_trained(metrics: Mapping[str, Any]) -> float:
    """Return the plain model's share of exact answers, mean over the trained lengths."""
    shares = [metrics["by_length"]["plain"][str(n)]["exact"] for n in metrics["trained"]]
    return float(sum(shares) / len(shares))


def interval(apart: Mapping[str, Any] | None) -> str:
    """Return a difference in points with the bootstrap's interval, as the page writes it; a dash if there is none."""
    return "-" if apart is None else f"{100 * apart['mean']:+.1f} {_points(apart['low'], apart['high'])}"


def by_seed(apart: Mapping[str, Any] | None) -> str:
    """Return each seed's difference in points, with Student's interval where there are several."""
    if apart is None:
        return "-"
    seeds = ", ".join(f"{100 * value:+.1f}" for value in apart["seeds"])
    return (
        seeds if apart["student"] is None or len(apart["seeds"]) < ENOUGH else f"{seeds} {_points(*apart['student'])}"
    )


def _points(low: float, high: float) -> str:
    return f"[{100 * low:+.1f}, {100 * high:+.1f}]"


def _ahead(beyond: Mapping[str, Any]) -> Claim:
    found = verdicts(beyond)
    ahead, behind, undecided = (len(found[kind]) for kind in ("ahead", "behind", "undecided"))
    asked = ahead + behind + undecided
    others = [(name, kind) for kind, names in found.items() for name in names if name not in EXCEPTIONS]
    leading = sum(kind == "ahead" for _, kind in others)
    on_average = _sign(beyond["all"])
    seen = {"ahead": "on average, not on nearly all", "behind": "the opposite, on average"}.get(on_average, "not seen")
    return Claim(
        "adaptive temperature in every head, in training and in use, is ahead on nearly all algorithms",
        "seen" if others and leading >= NEARLY_ALL * len(others) else seen,
        f"beyond the trained lengths ahead on {ahead} of {asked} algorithms, behind on {behind}, undecided on "
        f"{undecided}; without the paper's exceptions ahead on {leading} of {len(others)}; over all questions "
        f"{interval(beyond['all'])}",
    )


def _most_beyond(spans: Mapping[str, Any]) -> Claim:
    trained, beyond = spans["trained"]["all"], spans["beyond"]["all"]
    seen = "undecided"  # intervals that overlap say no more
    if trained is not None and beyond is not None:
        (low, high), (trained_low, trained_high) = widest(beyond), widest(trained)
        if low > trained_high:
            seen = "seen" if low > 0 else "not seen"
        elif high < trained_low:
            seen = "the opposite"
    return Claim(
        "its lead is largest beyond the trained lengths",
        seen,
        f"at trained lengths {interval(trained)}, beyond {interval(beyond)}",
    )


def _exceptions(metrics: Mapping[str, Any], beyond: Mapping[str, Any]) -> Claim:
    asked = [name for name in EXCEPTIONS if beyond.get(name)]
    signs = {name: _sign(beyond[name]) for name in asked}
    seen = "not asked" if not asked else "undecided"
    if ahead := [name for name in asked if signs[name] == "ahead"]:
        seen = f"not on {_listed(ahead)}: ahead"
    elif behind := [name for name in asked if signs[name] == "behind"]:
        seen = f"on {_listed(behind)}: behind"
    told = "; ".join(
        f"{name} {interval(beyond[name])}" + ("" if _answers(metrics, name) else " (neither gives one exact answer)")
        for name in asked
    )
    return Claim("heapsort, MST-Kruskal and bubble sort are the exceptions: not ahead there", seen, told)


def _at_inference(spans: Mapping[str, Any]) -> Claim:
    """Judge at all lengths: what breaks a model where it is good shows there, not where it answers nothing."""
    trained, beyond = spans["trained"]["all"], spans["beyond"]["all"]
    signs = {_sign(trained), _sign(beyond)} - {"undecided"}
    seen = {"behind": "seen", "ahead": "the opposite"}.get(signs.pop(), "") if len(signs) == 1 else "undecided"
    here = (
        f"the plain model, sharpened, against itself: at trained lengths {interval(trained)}, beyond {interval(beyond)}"
    )
    return Claim("used at inference only, it does not work well", seen, here)


def _sign(apart: Mapping[str, Any] | None) -> str:
    (sign,) = (kind for kind, names in verdicts({"one": apart}).items() if names) if apart else ("undecided",)
    return sign


def _answers(metrics: Mapping[str, Any], algorithm: str) -> bool:
    """Tell whether plain attention or the paper's gives any exact answer beyond the trained lengths."""
    return any(metrics["accuracy"][arm][algorithm][str(n)] for arm in ("plain", "paper") for n in metrics["beyond"])


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
