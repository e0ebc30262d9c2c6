"""Softmax at the inverse temperature that a policy chooses for each row; long sequences go through fused kernels.

Heads without positions have slope 0. A head with ALiBi's slope m adds -m·(i - j) to its logits. Softmax does not see
what is the same for a whole row, so `+ m·j` is as good, and that is a feature of the key: kernels need no bias. Half
precision holds j by two features, its high and its low digits, exactly.
"""

from abc import abstractmethod
from dataclasses import dataclass, field

from sharpmax.core.policies import Constant, LengthScaled, LogLinear, Policy
from sharpmax.core.softmax import sharpened_rows
from sharpmax.extras import extra
from sharpmax.models.mechanisms.base import Learned, Mechanism, widened
from sharpmax.torch import attention

with extra("torch"):
    import torch
    from torch import Tensor
    from torch.nn import functional

DIGIT = 128  # positions are split into j // DIGIT and j % DIGIT
ALIGNED = 64  # half-precision kernels are fastest on heads of a multiple of this width


class Softmax(Mechanism):
    """Softmax under a policy, which may be made of what is learned."""

    @abstractmethod
    def policy_of(self, learned: Learned) -> Policy:
        """Return the policy, its arrays in the shape of `learned`'s, which broadcast to rows."""

    def weigh(self, rows: Tensor, learned: Learned) -> Tensor:
        """Return sharpened weights, by the dense reference's own steps."""
        policy = self.policy_of({name: value[:, None] for name, value in learned.items()})
        queries, keys = rows.shape[-2:]
        position = torch.arange(keys - queries, keys, device=rows.device, dtype=rows.dtype).expand(rows.shape[:-1])
        weights: Tensor = sharpened_rows(rows, policy, complete=False, position=position)[0]
        return weights

    def stream(self, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, learned: Learned, dtype: torch.dtype) -> Tensor:
        """Return the output by the fastest kernel that serves these tensors."""
        seeds, batch, heads, queries, width = q.shape
        # Sequences of all seeds form one batch, so what a seed has learned is repeated for each of its sequences.
        policy = self.policy_of({name: value.repeat_interleave(batch, dim=0) for name, value in learned.items()})
        scaled = widened(q) * width**-0.5
        parts = (part.flatten(0, 1).to(dtype) for part in _with_positions(scaled, k, v, slopes, dtype))
        out: Tensor = attention(*parts, policy=policy, is_causal=True, scale=1.0)[..., :width]
        return out.to(v.dtype).view(seeds, batch, heads, queries, width)


@dataclass(frozen=True)
class Sharpened(Softmax):
    """A fixed policy; `Constant(1.0)` is plain softmax.

    Attributes:
        heads: where it acts: in "all", or in the "free" ones, the first half, which know no positions. Entropy in the
            other half does not grow with the input, because ALiBi lets them see near keys alone.
    """

    policy: Policy = field(default_factory=lambda: Constant(1.0))
    heads: str = "all"

    def __post_init__(self) -> None:
        if self.heads not in ("all", "free"):
            raise ValueError(f"expected heads to be 'all' or 'free', got {self.heads!r}")

    def policy_of(self, learned: Learned) -> Policy:
        """Return the one there is."""
        return self.policy

    def weigh(self, rows: Tensor, learned: Learned) -> Tensor:
        """Weigh all heads alike, or the second half by plain softmax."""
        if self.heads == "all":
            return super().weigh(rows, learned)
        free, biased = rows.tensor_split(2, dim=2)
        return torch.cat((super().weigh(free, learned), Sharpened().weigh(biased, learned)), dim=2)

    def stream(self, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, learned: Learned, dtype: torch.dtype) -> Tensor:
        """Stream all heads alike, or the second half by plain softmax."""
        if self.heads == "all":
            return super().stream(q, k, v, slopes, learned, dtype)
        (q1, q2), (k1, k2), (v1, v2) = (part.tensor_split(2, dim=2) for part in (q, k, v))
        low, high = slopes.tensor_split(2)
        free = super().stream(q1, k1, v1, low, learned, dtype)
        return torch.cat((free, Sharpened().stream(q2, k2, v2, high, learned, dtype)), dim=2)


@dataclass(frozen=True)
class LearnedSSMax(Softmax):
    """beta = s·log n + b, both learned per head; arXiv 2501.19399 with an offset. It begins at s = 0, b = 1."""

    def starts(self, heads: int, width: int, layer: int) -> dict[str, Tensor]:
        """Return the numbers of plain softmax."""
        return {"s": torch.zeros(heads, 1), "b": torch.ones(heads, 1)}

    def policy_of(self, learned: Learned) -> Policy:
        """Return SSMax with each head's numbers."""
        return LengthScaled.ssmax(learned["s"], learned["b"])


@dataclass(frozen=True)
class LearnedLogLinear(Softmax):
    """log beta = a + b·log(n/n0) + c·(H - 1), learned per head; `rising` holds b and c above 0 by softplus."""

    rising: bool = False
    n0: float = 64.0

    def starts(self, heads: int, width: int, layer: int) -> dict[str, Tensor]:
        """Return numbers at which beta is 1, or nearly so where slopes are held above 0: 0.05 per nat."""
        slope = -2.97 if self.rising else 0.0  # softplus(-2.97) = 0.05
        return {"a": torch.zeros(heads, 1), "b": torch.full((heads, 1), slope), "c": torch.full((heads, 1), slope)}

    def policy_of(self, learned: Learned) -> Policy:
        """Return LogLinear with each head's numbers."""
        b, c = (functional.softplus(learned[name]) if self.rising else learned[name] for name in ("b", "c"))
        return LogLinear(learned["a"], b, c, n0=self.n0)


def _with_positions(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v of one width: 1, 1 in a query, m·(j - j mod DIGIT), m·(j mod DIGIT) in a key, then zeros."""
    width = q.shape[-1]
    multiple = ALIGNED if dtype != torch.float32 else 8
    padding = -(width + 2) % multiple
    places = torch.arange(k.shape[-2], device=k.device, dtype=torch.float32)
    low = places % DIGIT
    digits = (slopes[:, None, None] * torch.stack((places - low, low), dim=1)).to(k.dtype)
    key = torch.cat((k, digits.expand(*k.shape[:-1], 2)), dim=-1)
    query = torch.cat((q, q.new_ones(*q.shape[:-1], 2)), dim=-1)
    q, k = (functional.pad(part, (0, padding)) for part in (query, key))
    return q, k, functional.pad(v, (0, 2 + padding))
