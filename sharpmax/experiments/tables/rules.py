"""The policies that are asked, by arm; and what the fitted ones are made of."""

from typing import Any

from sharpmax.core.policies import PAPER, Constant, EntropyTarget, LengthScaled, PerLayer, Policy
from sharpmax.extras import extra

with extra("torch"):
    import torch
    from torch import Tensor


def sloped(slope: Any, trained: int) -> LengthScaled:
    """Return beta = max(1 + slope·log(n/trained), 0): 1 at the trained size, whatever the slope."""
    return LengthScaled(slope=slope, offset=1.0, reference=float(trained), minimum=0.0)


def card(slopes: "Tensor | list[list[float]]", trained: int) -> PerLayer:
    """Return the policy of slopes (layers, heads)."""
    rows = slopes if isinstance(slopes, Tensor) else torch.tensor(slopes)
    return PerLayer(tuple(sloped(row[:, None], trained) for row in rows))


def targets(entropies: list[list[float]]) -> PerLayer:
    """Return the policy that holds every head at an entropy (layers, heads) at most."""
    return PerLayer(tuple(EntropyTarget(torch.tensor(row)[:, None]) for row in entropies))


def policy_of(arm: str, fitted: dict[str, Any], trained: int) -> Policy:
    """Return what an arm's heads obey; `fitted` holds `slope`, `slopes` and `entropies`."""
    if arm == "plain":
        return Constant(1.0)
    if arm == "log-n":
        return LengthScaled.log_n(trained)
    if arm == "one":
        return sloped(fitted["slope"], trained)
    if arm == "card":
        return card(fitted["slopes"], trained)
    if arm == "paper":
        return PAPER
    if arm == "target":
        return targets(fitted["entropies"])
    raise ValueError(f"arm {arm!r} has no policy")
