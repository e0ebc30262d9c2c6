"""Training throughput with each policy in every head, beside plain attention: same model, same batches, same run.

The loop is the Trainer's own, as `sharpmax finetune` runs it, on CLRS-Text. Policies take turns, and so do the model as
it is and with its blocks compiled, so a machine that slows down slows all of them; each first runs once untimed.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from rich.table import Table

from sharpmax.hf.finetune.answer_batches import encode
from sharpmax.hf.finetune.train import Recipe, finetune
from sharpmax.hf.finetune.trained_policy import NAMES, must_name_a_policy, policy_named
from sharpmax.hf.models.gemma import SIZES, gemma
from sharpmax.hf.models.load import load
from sharpmax.tasks.clrs_text.corpus import Plan, corpus
from sharpmax.torch.device import device_or_best

WANTED = 0.75
"""What the paper's rule in every head must keep of plain attention's speed."""


def measure(
    *,
    model: str = "smollm2",
    steps: int = 10,
    tokens: int = 32768,
    repeats: int = 3,
    policies: Sequence[str] = NAMES,
    compile: bool = False,
    device: str | None = None,
    plan: Plan | None = None,
) -> dict[str, Any]:
    """Return tokens per second for each policy, and their ratio to plain attention's; under `compiled` the same again.

    A `plan` is what to train on, instead of the experiment's corpus.
    """
    import torch

    if steps < 2 or repeats < 1:
        raise ValueError(f"expected at least 2 steps and 1 repeat, got {steps} and {repeats}")
    for name in policies:
        must_name_a_policy(name)
    device = device_or_best(device)
    loaded = gemma(model, device=device) if model in SIZES else load(model, device=device)
    texts = corpus(plan or Plan()).train[: steps * max(50, tokens // 64)]
    examples = encode(loaded.tokenizer, [(example.question, example.answer) for example in texts])
    recipe = Recipe(steps, tokens, learning_rate=1e-5, policy_rate=1e-5, save_every=0, log_every=steps // 2)
    ways = {False: recipe, True: replace(recipe, compile=True)} if compile else {False: recipe}
    speeds = {way: {name: list[float]() for name in dict.fromkeys(("none", *policies))} for way in ways}
    first: dict[bool, float] = {}
    for turn in range(repeats + 1):
        for way, of_way in ways.items():
            for name, found in speeds[way].items():
                policy = policy_named(name, loaded.model)
                began = time.perf_counter()
                with tempfile.TemporaryDirectory() as folder:
                    done = finetune(loaded.model, examples, of_way, policy=policy, folder=folder, report=lambda _: None)
                first.setdefault(way, time.perf_counter() - began)
                if turn:
                    found.append(done.tokens_per_second)
    peak = {"peak_gigabytes": torch.cuda.max_memory_allocated() / 1e9} if device.startswith("cuda") else {}
    return {
        "model": model,
        "tokens_a_step": tokens,
        "steps": steps,
        **_summary(speeds[False]),
        **({"compiled": {**_summary(speeds[True]), "first_turn_seconds": round(first[True], 1)}} if compile else {}),
        "wanted": WANTED,
        **peak,
    }


def _summary(speeds: dict[str, list[float]]) -> dict[str, Any]:
    typical = {name: median(found) for name, found in speeds.items()}
    return {
        "tokens_per_second": {name: [round(speed) for speed in found] for name, found in speeds.items()},
        "of_plain": {name: speed / typical["none"] for name, speed in typical.items()},
    }


def show(figures: dict[str, Any]) -> Table:
    """Return the figures as a table for the terminal."""
    table = Table("policy", "tokens/s", "of plain", title=f"Fine-tuning {figures['model']} on CLRS-Text")
    ways = {"": figures} | ({", compiled": figures["compiled"]} if "compiled" in figures else {})
    for way, found in ways.items():
        for name, speeds in found["tokens_per_second"].items():
            table.add_row(name + way, f"{median(speeds):,.0f}", f"{found['of_plain'][name]:.2f}")
    return table
