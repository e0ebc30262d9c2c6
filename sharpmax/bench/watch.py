"""What watching a training run costs: steps of a packed row, watched at every step, at every tenth, or not at all.

One model, one optimiser, the same row; the ways take turns of ten steps. That the watched model computes the plain
one's loss is checked first.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from statistics import median
from time import perf_counter
from typing import Any

from rich.table import Table

from sharpmax.extras import extra
from sharpmax.runs.progress import say
from sharpmax.torch.device import device_or_best

with extra("hf"):
    import torch

    from sharpmax.hf.finetune.packing import lay_out, packing
    from sharpmax.hf.models.shapes import SHAPES, random_model
    from sharpmax.torch import Watch, watch

STEPS = 10  # steps in a turn: one of every tenth is in it
PARTS = (4096, 3000, 2500, 2048, 1500, 1200, 1000, 640, 400)  # documents of a row of 16,384 tokens
WAYS = {"plain": None, "off": 10**9, "every 10th step": 10, "every step": 1}
"""How often each way watches. None: never switched on; off: switched on, and no step is due."""
WANTED = {"off": 0.01, "every 10th step": 0.01, "every step": 0.05}
"""The most that each way may add to a plain step, on an H200."""


def measure(
    *, model: str | None = None, tokens: int | None = None, repeats: int = 7, seconds: float = 75.0,
    device: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Check, then time; returns the milliseconds of a step of each way, and its ratio to a plain step.

    The options are those of `sharpmax bench watch --help`. No turn is begun, after one of each way has been timed, that
    would end after `seconds`.

    Raises:
        ValueError: an option out of range.
        ArithmeticError: a watched model that computes another loss than the plain one.
    """
    device = device_or_best(device)
    on_gpu = device.startswith("cuda")
    name, usual = model or ("smollm2" if on_gpu else "tiny"), sum(PARTS) if on_gpu else 512
    length = usual if tokens is None else tokens
    if repeats < 1 or length < 64:
        raise ValueError(f"expected at least 1 repeat and 64 tokens, got {repeats} and {length}")
    if not 0 <= seconds < inf:
        raise ValueError(f"expected seconds of at least 0, got {seconds:g}")
    dtype = torch.bfloat16 if on_gpu else torch.float32
    net = random_model(name, context=length, dtype=dtype, device=device).train()
    net.set_attn_implementation("sdpa")
    step = _training_step(net, length, device)
    began = perf_counter()
    losses = {}
    for way, every in WAYS.items():  # untimed: kernels are compiled, and the loss is compared
        with _watched(net, every, length, device) as watched:
            losses[way] = float(step(watched, learn=False))
    differing = {way: loss for way, loss in losses.items() if loss != losses["plain"]}
    if any(abs(loss - losses["plain"]) > 1e-3 * abs(losses["plain"]) for loss in differing.values()):
        raise ArithmeticError(f"expected the plain model's loss from a watched one, got {losses}")
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(repeats + 1):
        turn_began = perf_counter()
        for way, every in WAYS.items():
            with _watched(net, every, length, device) as watched:
                spent = _timed(step, watched, on_gpu)
            if turn:  # the first is to warm up
                times[way].append(spent)
                say(f"turn {turn}, {way}: {1e3 * spent:.2f} ms per step")
        now = perf_counter()
        if turn and now + (now - turn_began) > began + seconds:
            break
    plain, on = median(times["plain"]), torch.cuda.get_device_name(device) if on_gpu else device
    results = [
        {
            "way": way,
            "milliseconds": 1e3 * median(found),
            "over_plain": median(one / base for one, base in zip(found, times["plain"], strict=True)) - 1,
            "wanted": WANTED.get(way) if on_gpu and name == "smollm2" else None,
            "turns": [1e3 * one for one in found],
        }
        for way, found in times.items()
    ]
    return {
        "model": name, "about": SHAPES[name].about, "tokens": length, "device": on, "plain_ms": 1e3 * plain,
        "losses_bit_equal": not differing, "results": results,
    }  # fmt: skip


def show(figures: dict[str, Any]) -> Any:
    """Lay the figures out as a table for the terminal."""
    title = f"a training step of {figures['tokens']:,} packed tokens, {figures['model']}, {figures['device']}"
    table = Table("", "ms per step", "over plain", "wanted at most", title=title)
    for result in figures["results"]:
        wanted = "" if result["wanted"] is None else f"{100 * result['wanted']:.0f} %"
        over = "" if result["way"] == "plain" else f"{100 * result['over_plain']:+.2f} %"
        table.add_row(result["way"], f"{result['milliseconds']:.2f}", over, wanted)
    return table


def _training_step(net: Any, length: int, device: str) -> Callable[..., Any]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, net.config.vocab_size, (1, length), generator=generator).to(device)
    places = torch.cat([torch.arange(size) for size in _sizes(length)])[None].to(device)
    optimiser = torch.optim.AdamW(net.parameters(), 1e-6, fused=device.startswith("cuda"))

    def step(watched: Watch | None, *, learn: bool = True) -> Any:
        loss = net(input_ids=ids, position_ids=places, labels=ids, use_cache=False).loss
        if learn:
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        if watched is not None:
            watched.step()
        return loss.detach()

    return step


def _sizes(length: int) -> list[int]:
    """Return the documents of a row, in the proportions of `PARTS`."""
    sizes = [max(1, part * length // sum(PARTS)) for part in PARTS]
    return [sizes[0] + length - sum(sizes), *sizes[1:]]


@contextmanager
def _watched(net: Any, every: int | None, length: int, device: str) -> Iterator[Watch | None]:
    """Yield the model's watch, or None, while it takes packed rows."""
    watched = None if every is None else watch(net, every=every, step=1 if every > STEPS else 0)
    try:
        with packing(net) as shared:
            layout = lay_out(_sizes(length))
            on_device = {name: getattr(layout, name).to(device) for name in ("places", "cells")}
            shared.layout = replace(layout, documents=layout.documents.on(torch.device(device)), **on_device)
            yield watched
    finally:
        if watched is not None:
            watched.close()


def _timed(step: Callable[..., Any], watched: Watch | None, on_gpu: bool) -> float:
    """Return the seconds of a step, over a turn that ends when the device has finished."""
    gc.collect()
    step(watched)
    if watched is not None:  # the turn begins where a period does
        watched.current_step = watched.current_step if watched.every > STEPS else 0
        watched.gauge.measuring = watched.current_step % watched.every == 0
    wait: Callable[[], None] = torch.cuda.synchronize if on_gpu else (lambda: None)
    wait()
    start = perf_counter()
    for _ in range(STEPS):
        step(watched)
    wait()
    return (perf_counter() - start) / STEPS
