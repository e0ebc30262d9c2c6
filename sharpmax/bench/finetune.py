"""Training throughput with each policy in every head, beside plain attention: same model, same batches, same run.

The loop is the Trainer's own, as `sharpmax finetune` runs it, on CLRS-Text. Policies take turns, so a machine that
slows down slows all of them; each first runs once untimed.
"""

import tempfile
from collections.abc import Sequence
from statistics import median
from typing import Any

from rich.table import Table

from sharpmax.hf.answer_batches import encode
from sharpmax.hf.finetune import Recipe, finetune
from sharpmax.hf.gemma import SIZES, gemma
from sharpmax.hf.load import load
from sharpmax.hf.trained_policy import NAMES, policy_named
from sharpmax.tasks.clrs_text.corpus import Plan, corpus

WANTED = 0.75
"""What the paper's rule in every head must keep of plain attention's speed."""


def measure(
    *,
    model: str = "smollm2",
    steps: int = 10,
    tokens: int = 32768,
    repeats: int = 3,
    policies: Sequence[str] = NAMES,
    device: str | None = None,
    plan: Plan | None = None,
) -> dict[str, Any]:
    """Return tokens a second for each policy, padding not counted, and their ratio to plain attention's.

    Args:
        steps, repeats: steps in each turn, and how many turns each policy gets.
        plan: what to train on, instead of the experiment's corpus.
    """
    import torch

    if steps < 2 or repeats < 1:
        raise ValueError(f"expected at least 2 steps and 1 repeat, got {steps} and {repeats}")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    loaded = gemma(model, device=device) if model in SIZES else load(model, device=device)
    texts = corpus(plan or Plan()).train[: 50 * steps * max(1, tokens // 1024)]
    examples = encode(loaded.tokenizer, [(example.question, example.answer) for example in texts])
    recipe = Recipe(steps, tokens, learning_rate=1e-5, policy_rate=1e-5, save_every=0, log_every=steps // 2)
    speeds: dict[str, list[float]] = {name: [] for name in dict.fromkeys(("none", *policies))}
    for turn in range(repeats + 1):
        for name, found in speeds.items():
            policy = policy_named(name, loaded.model)
            with tempfile.TemporaryDirectory() as folder:
                done = finetune(loaded.model, examples, recipe, policy=policy, folder=folder, report=lambda line: None)
            if turn:
                found.append(done.tokens_per_second)
    typical = {name: median(found) for name, found in speeds.items()}
    peak = {"peak_gigabytes": torch.cuda.max_memory_allocated() / 1e9} if device.startswith("cuda") else {}
    return {
        "model": model,
        "tokens_a_step": tokens,
        "steps": steps,
        "tokens_per_second": {name: [round(speed) for speed in found] for name, found in speeds.items()},
        "of_plain": {name: speed / typical["none"] for name, speed in typical.items()},
        "wanted": WANTED,
        **peak,
    }


def show(figures: dict[str, Any]) -> Table:
    """Return the figures as a table for the terminal."""
    table = Table("policy", "tokens/s", "of plain", title=f"Fine-tuning {figures['model']} on CLRS-Text")
    for name, speeds in figures["tokens_per_second"].items():
        table.add_row(name, f"{median(speeds):,.0f}", f"{figures['of_plain'][name]:.2f}")
    return table
