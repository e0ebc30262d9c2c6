"""Which logits attain a row's maximum, or its minimum: those share its gradient, in equal parts."""

import jax.numpy as jnp
import numpy as np
from jax import Array

TIED = 4  # roundings within which a logit is the extreme: recomputed in another program it may differ by one


def attains(e: Array, extreme: Array) -> Array:
    """Tell whether a logit is its row's extreme, up to rounding."""
    band = TIED * float(np.finfo(e.dtype).eps) * jnp.maximum(jnp.abs(extreme), 1)
    return jnp.abs(e - extreme) <= band
