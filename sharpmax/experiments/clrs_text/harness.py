"""CLRS-Text as a task of lm-evaluation-harness: exact match of generated answers, by algorithm and length.

    task = clrs_text_task()                                              # or fewer algorithms, lengths, samples
    lm_eval.simple_evaluate(model=harness_model(load("smollm2"), "card.json"), tasks=[task])

The questions are the published validation set's, the answer is what the model writes until an empty line, and only
white space is forgiven. The harness comes by itself: `pip install lm-eval`.
"""

from collections.abc import Sequence
from importlib import import_module
from itertools import islice
from typing import Any

from sharpmax.tasks.clrs_text.examples import ALGORITHMS, Example, same_answer, stream, validation

NAME = "clrs_text"


class Documents(list[dict[str, Any]]):
    """Questions as the harness wants them: a list that can name its fields."""

    @property
    def features(self) -> dict[str, Any]:
        """The fields of a question."""
        return self[0]


def clrs_text_task(
    algorithms: Sequence[str] = ALGORITHMS, lengths: Sequence[int] = (8, 16, 32), *, samples: int = 1, shots: int = 0
) -> Any:
    """Return the task, for `simple_evaluate`: `samples` questions of each algorithm, length and validation seed.

    Args:
        shots: solved examples of the same algorithm and length put before each question, for a model that was not
            fine-tuned. They are of other draws than the questions, and never the question itself: small inputs repeat.

    Raises:
        ImportError: lm-eval is not installed.
        ValueError: nothing to ask, or fewer than 0 shots.
    """
    try:
        task = import_module("lm_eval.api.task")
    except ModuleNotFoundError as error:
        raise ImportError(f"{error.name} is not installed; it comes with: pip install lm-eval") from error
    if not algorithms or not lengths or shots < 0:
        raise ValueError(f"expected algorithms, lengths and 0 shots or more, got {algorithms}, {lengths} and {shots}")
    documents = Documents(
        {
            "algorithm": algorithm,
            "length": length,
            "question": _shots(example, shots) + example.question,
            "answer": example.answer,
        }
        for algorithm in algorithms
        for length in lengths
        for example in validation(algorithm, length, samples=samples)
    )
    longest = max(len(document["answer"]) for document in documents)  # no tokenizer makes more tokens than characters
    return task.ConfigurableTask(config={
        "task": NAME,
        "custom_dataset": lambda **_: {"test": documents},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": lambda document: document["question"],
        "doc_to_target": lambda document: document["answer"].strip(),
        "target_delimiter": "",
        "process_results": lambda document, said: {"exact_match": float(same_answer(said[0], document["answer"]))},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "generation_kwargs": {"until": ["\n\n"], "do_sample": False, "max_gen_toks": longest},
        "metadata": {"version": 1.0},
    })  # fmt: skip


def _shots(asked: Example, count: int) -> str:
    drawn = stream(asked.algorithm, asked.length, seed=1)
    return "".join(e.question + e.answer for e in islice((e for e in drawn if e.question != asked.question), count))
