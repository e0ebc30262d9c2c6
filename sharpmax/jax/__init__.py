"""sharpmax in JAX: the call, and its implementations side by side.

Importing this makes every policy that is defined by then a pytree whose `learnable` fields are its leaves. After
defining one of your own, call `register_policies()`.
"""

from sharpmax.extras import extra

with extra("jax"):
    import jax as _  # noqa: F401, said in one line when it is missing, before any module needs it

from sharpmax.jax.api import attention, row_stats, which_implementation
from sharpmax.jax.dispatch import IMPLEMENTATIONS, Plan
from sharpmax.jax.drop_ins.softmax import sharpened_softmax, softmax
from sharpmax.jax.mesh import sharded_attention
from sharpmax.jax.pytrees import register_policies
from sharpmax.jax.varlen import attention_varlen
from sharpmax.jax.watching.collect import collecting
from sharpmax.jax.watching.counters import HeadCounters, reading_of

__all__ = [
    "IMPLEMENTATIONS",
    "Choice",
    "HeadCounters",
    "Plan",
    "attention",
    "attention_varlen",
    "collecting",
    "reading_of",
    "register_policies",
    "row_stats",
    "sharded_attention",
    "sharpened_softmax",
    "softmax",
    "which_implementation",
]

Choice = Plan  # the former name

register_policies()
