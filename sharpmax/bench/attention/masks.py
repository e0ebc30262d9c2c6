"""What models ask of attention beyond a causal mask: settings for the benchmark, each with its inputs.

padding mask          a batch padded to the left, as a generating model's is, and causal, all in one boolean mask
window mask           the last 1,024 keys, as a mask too
sinks, softcap        beside plain attention that has neither
a stretch of a prompt as many queries as a quarter of the keys, the last ones
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from sharpmax.bench.attention.contestants import Setting

PADDED = (0, 1 / 8, 1 / 4, 1 / 2)  # shares of a row that are padding, one sequence after the other
WINDOW, SOFTCAP = 1024, 50.0


def padded(batch: int, keys: int, device: str) -> Any:
    """Return which keys are no padding, (batch, 1, 1, keys)."""
    first = torch.tensor([int(keys * PADDED[b % len(PADDED)]) for b in range(batch)], device=device)
    return (torch.arange(keys, device=device) >= first[:, None])[:, None, None]


def settings(tensors: Sequence[Any], device: str) -> Iterator[tuple[str, Setting, Sequence[Any]]]:
    """Yield what a row is called, its setting, and its inputs, from query, key and value (B, H, L, D)."""
    q, k, v = tensors
    batch, heads, length, _ = q.shape
    ahead = torch.arange(length, device=device) - torch.arange(length, device=device)[:, None]
    causal = ahead <= 0
    for name, mask in (
        ("padding mask", causal & padded(batch, length, device)),
        ("window mask", (causal & (ahead > -WINDOW))[None, None]),
    ):
        yield name, Setting(length, length, is_causal=False, device=device, changes={"mask": mask}), tensors
    for name, changes in (
        ("sinks", {"sinks": torch.linspace(-1, 1, heads, device=device)}),
        ("softcap", {"softcap": SOFTCAP}),
    ):
        yield name, Setting(length, length, is_causal=True, device=device, changes=changes), tensors
    stretch = length // 4
    yield "a stretch of a prompt", Setting(stretch, length, True, device), (q[:, :, -stretch:], k, v)
