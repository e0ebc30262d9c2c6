"""The records of a run as arrays: for every arm, what each seed answered to every question."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sharpmax.experiments.clrs_protocol.study import ARMS, Study
from sharpmax.runs.run_folder import RunFolder
from sharpmax.tasks.clrs_text.examples import VALIDATION_SEEDS
from sharpmax.tasks.clrs_text.inputs import SORTS
from sharpmax.tasks.clrs_text.protocol import asked_lengths, span_of

MEASURES = ("log_likelihood", "exact", "items", "stop")
"""What is told of an answer: its log-likelihood in nats (primary), whether all of it is right, the share of its items
that are, and whether it ends where it should; each token after the right ones before it."""
MISTAKES = {"i": "wrong item", "e": "ends early", "l": "ends late", "f": "wrong format"}
LISTS = (*SORTS, "activity_selector", "task_scheduling")
Values = Mapping[str, np.ndarray]


def compact(answers: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the answers of one seed, by algorithm, as lines of text: a tenth of the size of lists.

    Log-likelihoods stand in the order of the questions. A wrong answer is `question:letters`, a decoded one
    `question:letters:tokens said`.
    """
    return {
        name: {
            "log_likelihood": " ".join(f"{value:.4g}" for value in found["log_likelihood"]),
            "wrong": " ".join(f"{question}:{letters}" for question, letters in found["wrong"].items()),
            "decoded": " ".join(
                f"{question}:{letters}:{said}" for question, (letters, said) in found["decoded"].items()
            ),
        }
        for name, found in answers.items()
    }


def expanded(answers: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, Any]]:
    """Return what `compact` was given, its log-likelihoods rounded."""
    found = {}
    for name, lines in answers.items():
        wrong, decoded = ([each.split(":") for each in lines[kind].split()] for kind in ("wrong", "decoded"))
        found[name] = {
            "log_likelihood": [float(value) for value in lines["log_likelihood"].split()],
            "wrong": dict(wrong),
            "decoded": {question: [letters, int(said)] for question, letters, said in decoded},
        }
    return found


class Asked:
    """The questions of a study, in the order of every record: algorithm by algorithm, by length, seed and sample."""

    def __init__(self, study: Study) -> None:
        algorithm, length = [], []
        for name in study.algorithms:
            lengths = [n for n in asked_lengths(name) if study.lengths is None or n in study.lengths]
            each = np.repeat(lengths, len(VALIDATION_SEEDS) * study.samples)
            algorithm += [name] * len(each)
            length += each.tolist()
        self.algorithms = study.algorithms
        self.algorithm, self.length = np.array(algorithm), np.array(length)
        self.span = np.array([span_of(*pair) for pair in zip(algorithm, length, strict=True)])

    def where(
        self, *, algorithms: Sequence[str] | None = None, span: str | None = None, length: int | None = None
    ) -> np.ndarray:
        """Return which questions are of these algorithms, of this span and of this length."""
        chosen = np.ones(len(self.length), bool)
        if algorithms is not None:
            chosen &= np.isin(self.algorithm, list(algorithms))
        if span is not None:
            chosen &= self.span == span
        if length is not None:
            chosen &= self.length == length
        return chosen


class Answers:
    """What each seed of one arm answered: every measure as an array (seed, question)."""

    def __init__(self, asked: Asked, records: Sequence[Mapping[str, Any]]) -> None:
        self.seeds = [record["seed"] for record in records]
        self.learning_rate = records[0]["learning_rate"]
        answers = [expanded(record["answers"]) for record in records]
        self.values: Values = {
            measure: np.array([_measured(asked, each, measure) for each in answers]) for measure in MEASURES
        }
        self.first_mistakes = [_first_mistakes(asked, each) for each in answers]
        self.decoded = [_decoded(each) for each in answers]


def answers_in(folder: RunFolder, study: Study, asked: Asked) -> dict[str, Answers]:
    """Return the answers of every arm that has a record of seed after seed, from the first on."""
    found = {}
    for arm in ARMS:
        records = []
        for seed in study.seeds_of(arm):
            if not folder.has(f"{arm}-seed{seed}"):
                break
            records.append(folder.read(f"{arm}-seed{seed}"))
        if records:
            found[arm] = Answers(asked, records)
    return found


def gate_answers(folder: RunFolder, asked: Asked) -> Answers | None:
    """Return what plain attention answered on the spare seeds; None before the gate has run."""
    keys = [key for key in folder.steps if key.startswith("gate-seed")]
    return Answers(asked, [folder.read(key) for key in keys]) if keys else None


def _measured(asked: Asked, answers: Mapping[str, Any], measure: str) -> list[float]:
    values: list[float] = []
    for algorithm in asked.algorithms:
        found = answers[algorithm]
        if measure == "log_likelihood":
            values += found["log_likelihood"]
            continue
        of_algorithm = [1.0] * len(found["log_likelihood"])  # what is not among the wrong ones is right
        for question, letters in found["wrong"].items():
            of_algorithm[int(question)] = _share(algorithm, letters, measure)
        values += of_algorithm
    return values


def _share(algorithm: str, letters: str, measure: str) -> float:
    """Return what a wrong answer is worth by one measure."""
    if measure == "exact":
        return 0.0
    if measure == "stop":
        return float("e" not in letters and letters[-1] != "l")
    items = letters[1:-1] if algorithm in LISTS else letters[:-1]
    return items.count(".") / len(items)


def _first_mistakes(asked: Asked, answers: Mapping[str, Any]) -> list[str]:
    """Return the kind of each answer's first mistake, a letter of `MISTAKES`; none where the answer is right."""
    kinds: list[str] = []
    for algorithm in asked.algorithms:
        found = answers[algorithm]
        of_algorithm = [""] * len(found["log_likelihood"])
        for question, letters in found["wrong"].items():
            of_algorithm[int(question)] = letters.lstrip(".")[0]
        kinds += of_algorithm
    return kinds


def _decoded(answers: Mapping[str, Any]) -> dict[str, int]:
    """Count the questions that were decoded, and on how many decoding and one pass agree about the exact answer."""
    counts = {"asked": 0, "agree": 0}
    for found in answers.values():
        for question, (letters, said) in found["decoded"].items():
            right = set(letters) <= {"."} and len(letters) == said
            counts["asked"] += 1
            counts["agree"] += right == (question not in found["wrong"])
    return counts
