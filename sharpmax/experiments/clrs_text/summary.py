"""Summarise the records: accuracies, and differences to the plain arm with two intervals.

Every arm answers the same questions after training on the same data in the same order, so differences are paired.

- The bootstrap resamples seeds and questions. With two seeds that disagree it covers the truth in about half of all
  experiments, not in 95 of 100.
- Student's interval, over the means of the seeds, accounts for few seeds, but not for other questions.

A difference is decided where both intervals say so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sharpmax.statistics import by_side, crossed_bootstrap, student_interval


class Records:
    """The records of a study as arrays (seed, example).

    `exact[arm]` is 1 where the whole answer is right, `share[arm]` the share of the answer's tokens that are.
    """

    def __init__(self, test: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> None:
        self.algorithm, self.length = np.array(test["algorithm"]), np.array(test["length"])
        self.tokens = np.array(test["tokens"])
        right: dict[str, dict[int, list[int]]] = {}
        for record in records:
            right.setdefault(record["arm"], {})[record["seed"]] = record["right"]["as trained"]
            if "paper at inference" in record["right"]:
                inferred = right.setdefault(f"{record['arm']}+paper", {})
                inferred[record["seed"]] = record["right"]["paper at inference"]
        counts = {arm: np.array([of_seed[seed] for seed in sorted(of_seed)]) for arm, of_seed in right.items()}
        self.exact = {arm: (count == self.tokens).astype(np.float64) for arm, count in counts.items()}
        self.share = {arm: count / self.tokens for arm, count in counts.items()}
        self.arms = tuple(counts)

    def where(self, *, algorithm: str | None = None, lengths: Sequence[int] | None = None) -> np.ndarray:
        """Return which examples are of the algorithm and of one of the lengths."""
        chosen = np.ones(len(self.tokens), bool)
        if algorithm is not None:
            chosen &= self.algorithm == algorithm
        if lengths is not None:
            chosen &= np.isin(self.length, list(lengths))
        return chosen


def accuracy(values: Mapping[str, np.ndarray], arm: str, chosen: np.ndarray) -> float | None:
    """Return the mean of the arm's values over the chosen examples and all seeds; None where there are none."""
    return float(values[arm][:, chosen].mean()) if chosen.any() else None


def difference(
    values: Mapping[str, np.ndarray], arm: str, chosen: np.ndarray, *, seed: int = 0
) -> dict[str, Any] | None:
    """Return mean, intervals and each seed's value of the arm's values minus plain's on the chosen examples."""
    if not chosen.any():
        return None
    apart = values[arm][:, chosen] - values["plain"][:, chosen]
    low, high = crossed_bootstrap(apart, seed=seed)
    seeds = apart.mean(1).tolist()
    return {"mean": float(apart.mean()), "low": low, "high": high, "seeds": seeds, "student": student_interval(seeds)}


def widest(apart: Mapping[str, Any]) -> tuple[float, float]:
    """Return the lower of the two intervals' low ends, and the higher of their high ones."""
    low, high = apart["student"] or (apart["low"], apart["high"])
    return min(low, apart["low"]), max(high, apart["high"])


def summarise(records: Records, *, algorithms: Sequence[str], trained: Sequence[int], beyond: Sequence[int]) -> Any:
    """Return every number that the page shows: by arm, algorithm and length, and the differences to plain."""
    lengths = (*trained, *beyond)
    by_length = {n: records.where(lengths=[n]) for n in lengths}
    return {
        "accuracy": {
            arm: {
                algorithm: {
                    str(n): accuracy(records.exact, arm, records.where(algorithm=algorithm, lengths=[n]))
                    for n in lengths
                }
                for algorithm in algorithms
            }
            for arm in records.arms
        },
        "by_length": {
            arm: {
                str(n): {"exact": accuracy(records.exact, arm, chosen), "tokens": accuracy(records.share, arm, chosen)}
                for n, chosen in by_length.items()
            }
            for arm in records.arms
        },
        "difference": _differences(records, records.exact, algorithms, trained, beyond),
        "token_difference": _differences(records, records.share, algorithms, trained, beyond),
    }


def _differences(
    records: Records,
    values: Mapping[str, np.ndarray],
    algorithms: Sequence[str],
    trained: Sequence[int],
    beyond: Sequence[int],
) -> dict[str, Any]:
    return {
        arm: {
            span: {
                "all": difference(values, arm, records.where(lengths=lengths)),
                **{a: difference(values, arm, records.where(algorithm=a, lengths=lengths)) for a in algorithms},
            }
            for span, lengths in (("trained", trained), ("beyond", beyond))
        }
        for arm in records.arms
        if arm != "plain"
    }


def verdicts(differences: Mapping[str, Any]) -> dict[str, list[str]]:
    """Sort algorithms by what both their intervals allow to say: ahead, behind, or neither."""
    intervals = {name: widest(apart) for name, apart in differences.items() if name != "all" and apart is not None}
    return by_side(intervals, {1: "ahead", -1: "behind", 0: "undecided"})
