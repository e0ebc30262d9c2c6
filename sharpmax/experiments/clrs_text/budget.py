"""Count what each algorithm gets of the training: examples, tokens, and its share of the loss counted either way.

And what attention gets of a row: how many shapes of batches a run has, each of which cuDNN plans, and how much padding.

`sharpmax reproduce clrs-text --only budget` writes it.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax.experiments.clrs_text.arm import encoded, opened
from sharpmax.experiments.clrs_text.study import Study
from sharpmax.hf.finetune.answer_batches import plan_rows
from sharpmax.hf.finetune.packing import lay_out
from sharpmax.hf.finetune.train import Recipe
from sharpmax.report import Page, Table, Text
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


def count_budget(study: Study, out: str | Path) -> dict[str, Any]:
    """Count what each algorithm of a study gets, in its model's tokens; kept in a run folder with a page."""
    config = {**study.config, "arms": [], "seeds": []}
    folder = opened(out, f"{study.name}-budget", config, study.model, "cpu")

    def count() -> dict[str, Any]:
        shapes, cells = attended(study.model, study.corpus, study.recipe)
        return {"algorithms": budget(study.model, study.corpus), "shapes": shapes, "cells_per_token": cells}

    metrics: dict[str, Any] = folder.once("budget", count)
    folder.finish(metrics)
    _page(metrics, study).save(folder.path)
    return metrics


def _page(metrics: dict[str, Any], study: Study) -> Page:
    rows = metrics["algorithms"]
    total = sum(of["examples"] * of["tokens"] for of in rows.values())
    shortest, longest = min(of["shortest"] for of in rows.values()), max(of["longest"] for of in rows.values())
    text = (
        f"In the tokens of {study.model}: {sum(of['examples'] for of in rows.values()):,} examples of {shortest} to "
        f"{longest:,} tokens, {total:,.0f} tokens in all. Attention meets {metrics['shapes']} shapes of batches in "
        f"{study.recipe.steps} steps, {metrics['cells_per_token']:.2f} cells per token."
    )
    percent = ("share_of_examples", "share_of_tokens", "share_of_answer_tokens")
    table = Table(
        ["", "examples", "different", "tokens", "answer", "% of examples", "% of tokens", "% of answer tokens"],
        [
            [
                name,
                *(f"{of[key]:,.0f}" for key in ("examples", "different", "tokens", "answer_tokens")),
                *(f"{100 * of[key]:.1f}" for key in percent),
            ]
            for name, of in rows.items()
        ],
        "Tokens are means per example.",
    )
    return Page("CLRS-Text: what each algorithm gets of the training", "Examples, tokens, shares.", [Text(text), table])
