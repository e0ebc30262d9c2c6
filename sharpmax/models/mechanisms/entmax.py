"""Entmax, and scales that learn to grow with the length before it (ASEntmax, arXiv 2506.16640).

    w = max(0, z - tau)^p,  z = (alpha - 1)·e,  p = 1/(alpha - 1),  tau so that the weights sum to 1

`sharpmax.normalisers.Entmax` solves for tau until every row is settled, which waits for the device at each step. Here a
fixed number of Newton steps on the p-norm of z - tau compiles into few kernels. A last one, with a gradient, has the
root's own gradient: S = Σ (z - tau)^p moves by p·Σ (z - tau)^(p-1)·dz, and the step divides by that sum.
"""

from dataclasses import dataclass

from sharpmax.extras import extra
from sharpmax.models.mechanisms.base import Learned, Mechanism, distances, widened

with extra("torch"):
    import torch
    from torch import Tensor
    from torch.nn import functional

STEPS = 16  # from the leader's weight of 1; most rows need 3 to 10, and a settled row stays
MOST_GROWTH = 3.0  # largest power of log n


@dataclass(frozen=True)
class Entmax(Mechanism):
    """alpha-entmax; 2 is sparsemax, and 1 softmax."""

    alpha: float = 1.5

    def __post_init__(self) -> None:
        if not 1 <= self.alpha <= 2:
            raise ValueError(f"expected alpha from 1 to 2, got {self.alpha}")

    def weigh(self, rows: Tensor, learned: Learned) -> Tensor:
        """Return the weights."""
        return torch.softmax(rows, dim=-1) if self.alpha == 1 else entmax(rows, self.alpha)


@dataclass(frozen=True)
class AdaptiveEntmax(Entmax):
    """Entmax of (1 + beta·(log n)^gamma)·e; with alpha = 1 softmax, SSMax whose scale reads the query.

    beta = softplus(u·q) and gamma = 3·tanh(w·q) of each query q, with vectors u and w learned per head.
    """

    def starts(self, heads: int, width: int, layer: int) -> dict[str, Tensor]:
        """Return vectors of 0: a scale of 1.69 at every length."""
        return {"beta": torch.zeros(heads, width), "gamma": torch.zeros(heads, width)}

    def logits(self, q: Tensor, k: Tensor, slopes: Tensor, learned: Learned) -> Tensor:
        """Return scaled logits; a key's distance is scaled alike."""
        rows = super().logits(q, k, slopes, learned)
        beta, gamma = ((widened(q) @ learned[name][:, None, :, :, None]).squeeze(-1) for name in ("beta", "gamma"))
        # Of one key the logarithm is 0, which has no power with a gradient: such a row has weight 1 at any scale.
        log_n = (distances(rows)[:, 0] + 1).clamp(min=2).to(rows.dtype).log()
        growth = (MOST_GROWTH * gamma.tanh() * log_n.log()).exp()
        hidden = rows == -torch.inf
        scaled = torch.where(hidden, 0.0, rows) * (1 + functional.softplus(beta) * growth)[..., None]
        return torch.where(hidden, rows, scaled)


def entmax(rows: Tensor, alpha: float) -> Tensor:
    """Return alpha-entmax of rows, -inf where masked; every row sees a key."""
    p = 1 / (alpha - 1)
    # Support lies within 1 of the leader, so that what is below can be cut off: -inf has no gradient.
    z = ((rows - rows.detach().amax(-1, keepdim=True)) * (alpha - 1)).clamp(min=-2.0)
    # Long rows without a gradient: to ask whether all are settled is cheaper than to go on.
    asks = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
    with torch.no_grad():
        tau = torch.full_like(z[..., :1], -1.0)
        for _ in range(STEPS):
            step = _step(z, tau, p)
            tau = tau + step
            if asks and float(step.max()) <= torch.finfo(z.dtype).eps:
                break
    # What rounding leaves of the sum goes to all alike.
    weights = _power((z - tau - _step(z, tau, p)).clamp(min=0), p)
    return weights / weights.sum(-1, keepdim=True).detach()


def _step(z: Tensor, tau: Tensor, p: float) -> Tensor:
    """Return Newton's step on (Σ (z - tau)^p)^(1/p) = 1, which never goes past the root."""
    apart = (z - tau).clamp(min=0)
    total = _power(apart, p).sum(-1, keepdim=True)
    slope = torch.where(apart > 0, _power(apart, p - 1), 0.0).detach().sum(-1, keepdim=True)
    return (total - _power(total, 1 - 1 / p)) / slope


def _power(x: Tensor, p: float) -> Tensor:
    """Return x^p; the two powers that matter without a logarithm."""
    return torch.ones_like(x) if p == 0 else x if p == 1 else x.square() if p == 2 else x**p
