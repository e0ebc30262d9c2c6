"""Inputs for the attention benchmark: the same amount of work, six kinds of rows.

sharpened   logits spread so that PAPER sharpens nearly every row (0.849 < H < 5.945 nats)
peaked      logits spread so far that most rows are a few keys' (H < 0.849): PAPER sharpens one row in eight
paired      keys come in twos that are equal, and each query matches one such: H is about log 2, no row is sharpened
scattered   paired, but one stretch of 64 queries in ten, drawn for each head, is spread as in `sharpened`
turning     paired up to the middle of the sequence, then spread: the first rows say nothing of the later ones
retrieval   each query matches one earlier key, 28 nats above the rest: few keys hold the mass
"""

from typing import Any

CASES = {
    "rows sharpened": "sharpened",
    "one row in eight sharpened": "peaked",
    "no row sharpened": "paired",
    "one stretch in ten sharpened": "scattered",
    "sharpened from the middle on": "turning",
    "retrieval": "retrieval",
}
"""The forward cases, and the inputs of each."""
KINDS = tuple(CASES.values())
STRETCH, SCATTERED = 64, 0.1
SPREAD = {2048: 2.4, 4096: 2.6, 8192: 2.8, 16384: 3.0, 32768: 3.2, 65536: 3.4, 131072: 3.6}


def draw(kind: str, *, length: int, width: int, tokens: int, features: int, dtype: Any, device: Any, seed: int) -> Any:
    """Return query, key and value (tokens/length, features/width, length, width)."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    shape = (max(1, tokens // length), features // width, length, width)
    q, k, v = (torch.randn(shape, generator=generator, device=device) for _ in range(3))
    if kind == "sharpened":
        q = q * SPREAD.get(length, 2.4)
    elif kind == "peaked":
        q = q * 20
    elif kind in ("paired", "scattered", "turning", "retrieval"):
        spread = q * SPREAD.get(length, 2.4)
        k = k / k.norm(dim=-1, keepdim=True) * width**0.5
        if kind != "retrieval":
            k[:, :, 1::2] = k[:, :, : length - 1 : 2]
        uniform = torch.rand(shape[:3], generator=generator, device=device)
        match = (uniform * torch.arange(1, length + 1, device=device)).long()
        q = torch.gather(k, 2, match[..., None].expand(shape)) * (28 / width**0.5) + 0.3 * q
        if kind == "turning":
            q[:, :, length // 2 :] = spread[:, :, length // 2 :]
        if kind == "scattered":
            stretches = torch.rand((*shape[:2], -(-length // STRETCH)), generator=generator, device=device) < SCATTERED
            q = torch.where(stretches.repeat_interleave(STRETCH, 2)[:, :, :length, None], spread, q)
    else:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    return [x.to(dtype) for x in (q, k, v)]
