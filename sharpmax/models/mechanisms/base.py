"""A mechanism turns the logits of a causal attention layer into weights: `rows -> weights`.

A mechanism is data: a frozen dataclass whose fields are its configuration. Numbers that it learns are parameters of
the model, one set per layer and seed. It says how rows are weighed; logits, masks and streaming are settled here.

Shapes: queries, keys and values are (seeds, batch, heads, length, width), rows (seeds, batch, heads, queries, keys).
There may be fewer queries than keys: they are the last ones.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from sharpmax.extras import extra

with extra("torch"):
    import torch
    from torch import Tensor

Learned = Mapping[str, Tensor]
"""What a mechanism learns in one layer, by name: (seeds, heads, 1)."""
ENTRIES_AT_ONCE = 2**26  # logits of one block of rows; streaming never holds more


class Mechanism(ABC):
    """How an attention layer weighs its keys."""

    def starts(self, heads: int, layer: int) -> dict[str, Tensor]:
        """Return the first values of what one layer learns, by name, each (heads, 1)."""
        return {}

    @abstractmethod
    def weigh(self, rows: Tensor, learned: Learned) -> Tensor:
        """Return the weights of rows of logits, -inf where masked, in float32 or float64."""

    def logits(self, q: Tensor, k: Tensor, slopes: Tensor) -> Tensor:
        """Return scaled products minus slope times distance, -inf for keys that come later, in float32 or wider."""
        wide = torch.promote_types(q.dtype, torch.float32)
        products = (q.to(wide) * q.shape[-1] ** -0.5) @ k.to(wide).mT
        return hide_later_keys(products - slopes.to(wide)[:, None, None] * distances(q, k).to(wide))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, learned: Learned) -> Tensor:
        """Return the output (seeds, batch, heads, queries, width) by all weights at once: for short sequences."""
        return self.weigh(self.logits(q, k, slopes), learned).to(v.dtype) @ v

    def stream(self, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, learned: Learned, dtype: torch.dtype) -> Tensor:
        """Return the same in blocks of queries, for long sequences without a gradient.

        `dtype` is what a fused kernel multiplies in; this one keeps that of its arguments.
        """
        queries, keys = q.shape[-2], k.shape[-2]
        step = max(1, ENTRIES_AT_ONCE // (keys * q[..., 0, 0].numel()))
        blocks = []
        for start in range(0, queries, step):
            end = min(start + step, queries)
            seen = keys - queries + end
            parts = q[..., start:end, :], k[..., :seen, :], v[..., :seen, :]
            blocks.append(self.attend(*parts, slopes, learned))
        return torch.cat(blocks, dim=-2)


def distances(q: Tensor, k: Tensor) -> Tensor:
    """Return how far each key lies before each query, (queries, keys), negative for later keys."""
    queries, keys = q.shape[-2], k.shape[-2]
    of_query = torch.arange(keys - queries, keys, device=q.device)
    return of_query[:, None] - torch.arange(keys, device=q.device)


def hide_later_keys(rows: Tensor) -> Tensor:
    """Write -inf where a key comes after its query; the last query sees every key."""
    queries, keys = rows.shape[-2:]
    of_query = torch.arange(keys - queries, keys, device=rows.device)
    return torch.where(torch.arange(keys, device=rows.device) <= of_query[:, None], rows, -torch.inf)
