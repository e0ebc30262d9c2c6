"""A mechanism turns the logits of a causal attention layer into weights: `rows -> weights`.

A mechanism is data: a frozen dataclass whose fields are its configuration. Numbers that it learns are parameters of
the model, one set per layer and seed. It says how rows are weighed; logits, masks and streaming are settled here.

Shapes: queries, keys and values are (seeds, batch, heads, length, width), rows (seeds, batch, heads, queries, keys).
There may be fewer queries than keys: they are the last ones.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar

from sharpmax.extras import extra

with extra("torch"):
    import torch
    from torch import Tensor

Learned = Mapping[str, Tensor]
"""What a mechanism learns in one layer, by name: (seeds, heads, …)."""
ENTRIES_AT_ONCE = 2**26  # logits of one block of rows; streaming never holds more


class Mechanism(ABC):
    """How an attention layer weighs its keys."""

    needs_every_query: ClassVar[bool] = False
    """Whether the weights of a query depend on earlier queries: then none may be left out."""

    def starts(self, heads: int, width: int, layer: int) -> dict[str, Tensor]:
        """Return the first values of what one layer learns, by name, each (heads, …); `width` is a head's."""
        return {}

    @abstractmethod
    def weigh(self, rows: Tensor, learned: Learned) -> Tensor:
        """Return the weights of rows of logits, -inf where masked, in float32 or float64.

        To multiply rows by what is learned, use `scaled(rows, factor)`: -inf times a gradient of 0 is no number.
        """

    def logits(self, q: Tensor, k: Tensor, slopes: Tensor, learned: Learned) -> Tensor:
        """Return scaled products minus slope times distance, -inf for keys that come later, in float32 or wider."""
        q, k = widened(q), widened(k)
        return with_distances((q * q.shape[-1] ** -0.5) @ k.mT, slopes)

    def weights(self, q: Tensor, k: Tensor, slopes: Tensor, learned: Learned) -> Tensor:
        """Return the weights of every query and key at once."""
        return self.weigh(self.logits(q, k, slopes, learned), learned)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, learned: Learned) -> Tensor:
        """Return the output (seeds, batch, heads, queries, width) by all weights at once: for short sequences."""
        return self.weights(q, k, slopes, learned).to(v.dtype) @ v

    def learn(self, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, learned: Learned) -> Tensor:
        """Return the output in training: that of `attend`, unless training is made harder than asking."""
        return self.attend(q, k, v, slopes, learned)

    def stream(self, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, learned: Learned, dtype: torch.dtype) -> Tensor:
        """Return the same in blocks of queries, for long sequences without a gradient.

        `dtype` is what a fused kernel multiplies in; this one keeps that of its arguments.
        """
        parts = [
            self.attend(q[..., start:end, :], k[..., :seen, :], v[..., :seen, :], slopes, learned)
            for start, end, seen in blocks_of_rows(q, k)
        ]
        return torch.cat(parts, dim=-2)


def blocks_of_rows(q: Tensor, k: Tensor) -> Iterator[tuple[int, int, int]]:
    """Yield the first query of each block, the one after its last, and how many keys that one sees."""
    queries, keys = q.shape[-2], k.shape[-2]
    step = max(1, ENTRIES_AT_ONCE // (keys * q[..., 0, 0].numel()))
    for start in range(0, queries, step):
        end = min(start + step, queries)
        yield start, end, keys - queries + end


def scaled(rows: Tensor, factor: Tensor) -> Tensor:
    """Return factor · rows, still -inf where masked, with a finite gradient of the factor.

    A factor that is learned must not multiply -inf itself: its gradient would be -inf · 0, which is no number.

    >>> rows, factor = torch.tensor([1.0, -torch.inf]), torch.tensor(2.0, requires_grad=True)
    >>> scaled(rows, factor).softmax(-1)[0].backward()
    >>> factor.grad
    tensor(0.)
    """
    masked = rows.isneginf()
    return (factor * rows.masked_fill(masked, 0.0)).masked_fill(masked, -torch.inf)


def widened(x: Tensor) -> Tensor:
    """Return x in float32 or wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def distances(rows: Tensor) -> Tensor:
    """Return how far each key lies before each query, (queries, keys); the last query is beside the last key."""
    queries, keys = rows.shape[-2:]
    of_query = torch.arange(keys - queries, keys, device=rows.device)
    return of_query[:, None] - torch.arange(keys, device=rows.device)


def with_distances(rows: Tensor, slopes: Tensor) -> Tensor:
    """Subtract each head's slope times the distance, and write -inf where a key comes after its query."""
    apart = distances(rows)
    return torch.where(apart >= 0, rows - slopes.to(rows.dtype)[:, None, None] * apart, -torch.inf)
