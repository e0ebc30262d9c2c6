"""The public functions with their annotated shapes checked, in arguments and in results."""

from functools import partial

from beartype import beartype
from jaxtyping import jaxtyped

import sharpmax.jax

check = partial(jaxtyped, typechecker=beartype)
attention = check(sharpmax.jax.attention)
attention_varlen = check(sharpmax.jax.attention_varlen)
row_stats = check(sharpmax.jax.row_stats)
sharded_attention = check(sharpmax.jax.sharded_attention)
softmax = check(sharpmax.jax.softmax)
