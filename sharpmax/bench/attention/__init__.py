"""Measure what sharpened attention costs beside plain attention and other packages, in PyTorch and in JAX.

Read it from the outside in:

    torch.py, jax.py          which cases are measured in each framework, and with which options
    cases.py, masks.py        the cases: inputs, settings and contestants
    inputs.py                 six kinds of rows, from all sharpened to none
    contestants.py            who takes part
    judging.py, jax_judging.py  whether a result is right; a wrong one is not timed
    timing.py, turns.py       device time and wall time, contestants in turns
    profile.py, memory.py     where the time goes, and peak memory
    table.py, figure.py       the figures for people
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sharpmax.bench.attention.table import show, wrong
from sharpmax.extras import extra
from sharpmax.flags import require_at_least

__all__ = ["draw_figure", "measure", "show", "wrong"]


def measure(
    *,
    lengths: Sequence[int] = (),
    widths: Sequence[int] = (128, 64),
    repeats: int = 15,
    only: Sequence[str] = (),
    threads: int | None = None,
    seed: int = 0,
    framework: str = "torch",
) -> dict[str, Any]:
    """Check, then time, every case; returns times, ratios to plain attention, memory, and what failed.

    Args:
        lengths: tokens per sequence; none named: the framework's own list for a GPU or a CPU.
        widths: of a head; the features stay the same, so narrower heads are more heads. Others take the first.
        repeats: timed calls of each contestant, in turns; fewer of one that takes long.
        only: which of the framework's `PARTS`; none named: all that this machine can measure.
        threads: of PyTorch, where there is no GPU; 2 unless given.
        seed: of the inputs.
        framework: torch or jax.

    Raises:
        ValueError: for a size or number below 1, an unknown part, one that needs a GPU where there is none, another
            framework, or threads of JAX.
    """
    least = {"lengths": min(lengths, default=None), "widths": min(widths, default=None)}
    require_at_least(1, **least, repeats=repeats, threads=threads)
    if framework == "jax":
        if threads is not None:
            raise ValueError(f"threads are of PyTorch; JAX takes all cores: leave out threads {threads}")
        from sharpmax.bench.attention import jax

        return jax.measure(lengths=lengths, widths=widths, repeats=repeats, only=only, seed=seed)
    if framework != "torch":
        raise ValueError(f"framework must be torch or jax, got {framework!r}")
    with extra("torch"):
        from sharpmax.bench.attention import torch

    options: dict[str, Any] = {"repeats": repeats, "only": only, "threads": 2 if threads is None else threads}
    return torch.measure(lengths=lengths, widths=widths, **options, seed=seed)


def draw_figure(figures: dict[str, Any], folder: Path, name: str) -> Path:
    """Draw the ratios as `folder/name.svg` and `.png`; returns the path of the SVG."""
    from sharpmax.bench.attention.figure import display  # brings the report extra

    return display(figures).save(folder, name)
