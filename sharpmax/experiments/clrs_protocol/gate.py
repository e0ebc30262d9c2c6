"""The gate: has plain attention learned enough to be compared, and would the design see a difference?

An algorithm passes if spare seeds of plain attention give its answers exactly at trained lengths, and some, not all, at
some unseen length. The power is told from the same seeds. Between two plain models on the same questions there is no
difference but chance; by how much they differ on each algorithm says how much n pairs of arms would, and so the
smallest true difference that a two-sided test at 5 % finds in 80 of 100 experiments:

    (t(0.975) + t(0.80)) · s / √n      with n - 1 degrees of freedom

A pair of trained arms shares its seed's data and first weights, which two spare seeds do not: s is rather too large.
"""

from collections.abc import Sequence
from itertools import combinations
from math import sqrt
from typing import Any

import numpy as np

from sharpmax.experiments.clrs_protocol.records import Answers, Asked, gate_answers
from sharpmax.experiments.clrs_protocol.study import Study
from sharpmax.runs.run_folder import RunFolder
from sharpmax.statistics import smallest_detectable
from sharpmax.tasks.clrs_text.protocol import EXTRAPOLATION, TRAINED

POWER = 0.80
ENOUGH = 0.04  # of exact answers: the design must detect a difference no larger than this


def judge_gate(study: Study, folder: RunFolder) -> dict[str, Any]:
    """Return the verdict, which algorithms pass, and the smallest difference that the design would detect.

    Raises:
        ValueError: the gate has not run.
    """
    asked = Asked(study)
    answers = gate_answers(folder, asked)
    if answers is None:
        raise ValueError("the gate has not run; run it first: --only gate")
    exact = answers.values["exact"]
    by_algorithm = {name: _of_algorithm(study, asked, exact, name) for name in study.algorithms}
    passed = [name for name, found in by_algorithm.items() if found["passes"]]
    met = len(passed) >= study.gate.algorithms
    detectable = smallest_difference(study, asked, answers, passed)
    return {
        "met": met,
        "passed": passed,
        "algorithms": by_algorithm,
        "seeds": answers.seeds,
        "smallest_detectable": detectable,
        "powered": detectable is not None and detectable <= ENOUGH,
        "said": _said(study, met, passed, detectable),
    }


def _of_algorithm(study: Study, asked: Asked, exact: np.ndarray, name: str) -> dict[str, Any]:
    gate = study.gate
    trained = float(exact[:, asked.where(algorithms=[name], span=TRAINED)].mean())
    unseen = {}
    for length in sorted({int(n) for n in asked.length[(asked.algorithm == name) & (asked.span != TRAINED)]}):
        unseen[str(length)] = float(exact[:, asked.where(algorithms=[name], length=length)].mean())
    between = [length for length, share in unseen.items() if gate.low <= share <= gate.high]
    return {
        "trained": trained,
        "unseen": unseen,
        "between": between,
        "passes": trained >= gate.trained and bool(between),
    }


def smallest_difference(study: Study, asked: Asked, answers: Answers, passed: Sequence[str]) -> float | None:
    """Return the smallest difference in exact answers at the extrapolation lengths of the algorithms that pass.

    None where no two seeds, or no such questions, can tell.
    """
    exact = answers.values["exact"]
    chosen = asked.where(algorithms=passed, span=EXTRAPOLATION)
    if len(exact) < 2 or not chosen.any():
        return None
    variances = []
    for one, other in combinations(exact, 2):
        # Algorithms differ by chance each for itself, so their squares add up: more to judge by than one mean.
        parts = [asked.where(algorithms=[name], span=EXTRAPOLATION) for name in passed]
        variances.append(sum(float((one - other)[part].sum() / chosen.sum()) ** 2 for part in parts))
    return smallest_detectable(sqrt(float(np.mean(variances))), min(study.seeds["plain"], study.seeds["paper"]), POWER)


def _said(study: Study, met: bool, passed: Sequence[str], detectable: float | None) -> str:
    gate = study.gate
    power = (
        "; the smallest detectable difference cannot be told"
        if detectable is None
        else f"; the smallest detectable difference is {100 * detectable:.1f} points of exact answers"
    )
    return (
        f"the gate is {'met' if met else 'not met'}: {len(passed)} of {len(study.algorithms)} algorithms pass "
        f"({', '.join(passed) or 'none'}), {gate.algorithms} are asked{power}"
    )
