"""The laws of dispersion: what a row of n logits drawn from a known law looks like, at any n and beta.

`expect` is exact, by quadrature; `closed_form` is the formula, where one holds. Both say the entropy, the largest
weight and the participation. `law.critical_beta(n)` separates dispersed rows from sharp ones; `size_at` says when a
row has lost its sharpness, `beta_at` how sharp it must be made; `universal` is the curve that all bounded logits share.
"""

from sharpmax.core.laws.closed_forms import closed_form
from sharpmax.core.laws.distributions import Bounded, Exponential, Gaussian, Law, Needle, Stretched
from sharpmax.core.laws.expectation import Expected, expect, universal
from sharpmax.core.laws.sizes import beta_at, size_at

__all__ = [
    "Bounded",
    "Expected",
    "Exponential",
    "Gaussian",
    "Law",
    "Needle",
    "Stretched",
    "beta_at",
    "closed_form",
    "expect",
    "size_at",
    "universal",
]
