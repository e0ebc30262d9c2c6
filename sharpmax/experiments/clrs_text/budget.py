"""What each algorithm gets of the training: examples, tokens, and its share of the loss counted either way.

And what attention gets of a row: how many shapes of batches a run has, each of which cuDNN plans, and how much padding.

`python -m sharpmax.experiments.clrs_text.budget` prints it.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from sharpmax.experiments.clrs_text.arm import encoded
from sharpmax.experiments.clrs_text.study import SCALES
from sharpmax.hf.finetune.answer_batches import plan_rows
from sharpmax.hf.finetune.packing import lay_out
from sharpmax.hf.finetune.train import Recipe
from sharpmax.tasks.clrs_text.corpus import Plan, corpus


def budget(model: str, plan: Plan) -> dict[str, dict[str, float]]:
    """Return each algorithm's examples, how many differ, mean tokens, mean answer tokens, and its shares of them."""
    (train, _), examples = encoded(model, plan), corpus(plan).train
    names = np.array([example.algorithm for example in examples])
    tokens = np.array([len(example.ids) for example in train])
    answers = np.array([len(example.ids) - example.start for example in train])
    different = Counter(name for name, _ in {(example.algorithm, example.question) for example in examples})
    found: dict[str, dict[str, float]] = {}
    for name in plan.algorithms:
        of_it: Any = names == name
        found[name] = {
            "examples": int(of_it.sum()),
            "different": different[name],
            "shortest": int(tokens[of_it].min()),
            "longest": int(tokens[of_it].max()),
            "tokens": float(tokens[of_it].mean()),
            "answer_tokens": float(answers[of_it].mean()),
            "share_of_examples": float(of_it.mean()),
            "share_of_tokens": float(tokens[of_it].sum() / tokens.sum()),
            "share_of_answer_tokens": float(answers[of_it].sum() / answers.sum()),
        }
    return found


def attended(model: str, plan: Plan, recipe: Recipe) -> tuple[int, float]:
    """Return how many shapes of batches attention meets in a whole run, and the cells that a token takes in them."""
    sizes = [len(example.ids) for example in encoded(model, plan)[0]]
    rows = plan_rows(sizes, rows=recipe.steps * recipe.rows, width=recipe.width, seed=recipe.seed)
    shapes = [shape for row in rows for shape in lay_out([sizes[i] for i in row]).shapes]
    tokens = sum(sizes[i] for row in rows for i in row)
    return len(set(shapes)), sum(height * width for height, width in shapes) / tokens


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the full run's budget in a model's tokens; what the user can mend is one line and exit status 2."""
    parser = argparse.ArgumentParser(prog="budget", description="What each algorithm gets of the training.")
    parser.add_argument("--model", default=SCALES["full"].model, help="whose tokens are counted (smollm2)")
    model, scale = parser.parse_args(arguments).model, SCALES["full"]
    try:
        rows = budget(model, scale.corpus)
    except (ImportError, OSError, ValueError) as refusal:
        parser.exit(2, f"budget: error: {' '.join(str(refusal).split())}\n")
    console = Console(width=110)  # as wide as the table, also where it is written to a file
    total = sum(of["examples"] * of["tokens"] for of in rows.values())
    shortest, longest = min(of["shortest"] for of in rows.values()), max(of["longest"] for of in rows.values())
    examples = sum(of["examples"] for of in rows.values())
    console.print(_table(rows))
    console.print(f"in all: {examples:,} examples of {shortest} to {longest:,} tokens, {total:,.0f} tokens")
    shapes, cells = attended(model, scale.corpus, scale.recipe)
    console.print(f"attention: {shapes} shapes of batches in {scale.recipe.steps} steps, {cells:.2f} cells a token")


def _table(rows: dict[str, dict[str, float]]) -> Table:
    table = Table(
        Column(no_wrap=True),
        "examples",
        "different",
        "tokens",
        "answer",
        "% of examples",
        "% of tokens",
        "% of answer tokens",
    )
    for name, of in rows.items():
        percent = (f"{100 * of[key]:.1f}" for key in ("share_of_examples", "share_of_tokens", "share_of_answer_tokens"))
        counts = (f"{of[key]:,.0f}" for key in ("examples", "different", "tokens", "answer_tokens"))
        table.add_row(name, *counts, *percent)
    return table


if __name__ == "__main__":
    main()
