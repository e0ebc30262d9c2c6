"""The numbers of a run, from its records alone: accuracy by length, differences to plain attention, and the verdict.

Differences are paired: seed s has the same data, first weights and questions in every arm. Each has two 95 % intervals,
of a bootstrap over seeds and questions and of Student's over seeds. A difference is decided where both are on one side.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sharpmax.experiments.clrs_protocol.gate import ENOUGH, judge_gate
from sharpmax.experiments.clrs_protocol.records import MEASURES, MISTAKES, Answers, Asked, answers_in, gate_answers
from sharpmax.experiments.clrs_protocol.study import ARMS, PLAIN, TRAINED_ARMS, Study
from sharpmax.experiments.clrs_text.summary import difference, verdicts, widest
from sharpmax.runs.run_folder import RunFolder
from sharpmax.tasks.clrs_text.protocol import EXTRAPOLATION, SPANS

CLAIM = "adaptive temperature that is trained in improves most algorithms"


def summarise(study: Study, folder: RunFolder) -> dict[str, Any]:
    """Return every number that the page shows; what has not been computed yet is absent."""
    asked = Asked(study)
    answers = answers_in(folder, study, asked)
    gate = judge_gate(study, folder) if gate_answers(folder, asked) is not None else None
    rates = {arm: folder.read(f"rates-{arm}") for arm in TRAINED_ARMS if folder.has(f"rates-{arm}")}
    gated = gate["passed"] if gate else []
    found: dict[str, Any] = {
        "questions": len(asked.length),
        "parameters": study.transformer(PLAIN).parameters,
        "labels": {name: arm.label for name, arm in ARMS.items()},
        "rates": rates,
        "gate": gate,
        "arms": {arm: _alone(asked, of_arm, gated) for arm, of_arm in answers.items()},
        "differences": {},
    }
    if PLAIN in answers:
        found["differences"] = {
            arm: {measure: _differences(asked, answers[PLAIN], of_arm, measure, gated) for measure in MEASURES}
            for arm, of_arm in answers.items()
            if arm != PLAIN
        }
    if "paper" in found["differences"]:
        found["verdict"] = verdict(found["differences"]["paper"])
    return found


def _alone(asked: Asked, answers: Answers, gated: Sequence[str]) -> dict[str, Any]:
    """Return what one arm says without the others."""
    exact = answers.values["exact"]
    return {
        "seeds": answers.seeds,
        "learning_rate": answers.learning_rate,
        "by_length": {
            name: {
                str(length): exact[:, asked.where(algorithms=[name], length=length)].mean(1).round(6).tolist()
                for length in sorted({int(n) for n in asked.length[asked.algorithm == name]})
            }
            for name in asked.algorithms
        },
        "spans": {
            span: {
                group: {
                    measure: _mean(answers.values[measure], asked.where(algorithms=names, span=span))
                    for measure in MEASURES
                }
                for group, names in _groups(asked, gated).items()
            }
            for span in SPANS
        },
        "mistakes": {span: _mistakes(answers, asked.where(span=span)) for span in SPANS},
        "decoded": {key: sum(each[key] for each in answers.decoded) for key in ("asked", "agree")},
    }


def _groups(asked: Asked, gated: Sequence[str]) -> dict[str, Sequence[str]]:
    return {"gated": gated, "all": asked.algorithms, **{name: [name] for name in asked.algorithms}}


def _mean(values: np.ndarray, chosen: np.ndarray) -> float | None:
    return float(values[:, chosen].mean()) if chosen.any() else None


def _mistakes(answers: Answers, chosen: np.ndarray) -> dict[str, float]:
    """Return the share of answers whose first mistake is of each kind."""
    kinds = np.array(answers.first_mistakes)[:, chosen]
    return {name: float((kinds == letter).mean()) if kinds.size else 0.0 for letter, name in MISTAKES.items()}


def _differences(
    asked: Asked, plain: Answers, arm: Answers, measure: str, gated: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return the difference to plain attention in every span, over groups of algorithms; None without questions."""
    seeds = [seed for seed in arm.seeds if seed in plain.seeds]
    values: Mapping[str, np.ndarray] = {
        PLAIN: plain.values[measure][[plain.seeds.index(seed) for seed in seeds]],
        "arm": arm.values[measure][[arm.seeds.index(seed) for seed in seeds]],
    }
    # By algorithm what the verdict counts; the secondary measures over groups alone.
    groups = _groups(asked, gated)
    if measure not in ("log_likelihood", "exact"):
        groups = {name: groups[name] for name in ("gated", "all")}
    return {
        span: {
            group: difference(values, "arm", asked.where(algorithms=names, span=span))
            for group, names in groups.items()
        }
        for span in SPANS
    }


def verdict(differences: Mapping[str, Any]) -> dict[str, Any]:
    """Say whether the paper's claim is shown, refuted, bounded, or undecided, at extrapolation lengths.

    By exact answers over the algorithms that pass the gate: shown or refuted where both intervals exclude 0; else
    bounded where neither reaches further than `ENOUGH`. Algorithms are counted by log-likelihood and by exact answers.
    """
    exact = differences["exact"][EXTRAPOLATION]
    counted = {
        measure: verdicts(
            {name: found for name, found in differences[measure][EXTRAPOLATION].items() if name not in ("gated", "all")}
        )
        for measure in ("log_likelihood", "exact")
    }
    over = exact["gated"]
    if over is None:
        return {"claim": CLAIM, "finding": "not tested: no algorithm passed the gate", "algorithms": counted}
    low, high = widest(over)
    if low > 0:
        finding = "shown"
    elif high < 0:
        finding = "refuted"
    else:
        finding = "bounded" if max(-low, high) <= ENOUGH else "undecided"
    return {"claim": CLAIM, "finding": finding, "mean": over["mean"], "interval": [low, high], "algorithms": counted}
