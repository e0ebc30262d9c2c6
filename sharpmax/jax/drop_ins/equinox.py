"""Attention for Equinox: a module around `eqx.nn.MultiheadAttention` that attends with a policy.

    model = eqx.tree_at(lambda m: m.attention, model, replace_fn=lambda a: Sharpened(a, policy))

Called as what it wraps, with the same weights. The policy is a pytree, so it is part of the model: it trains, is
filtered and saved with it.
"""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
from jax import Array

from sharpmax.core.policies import PAPER
from sharpmax.jax.api import attention
from sharpmax.jax.request import check_options, check_policy

OPTIONS = ("bias", "is_causal", "scale", "window", "softcap", "sinks", "segments", "implementation")


class Sharpened(eqx.Module):
    """`MultiheadAttention` whose rows choose their temperature; `options` are those of `attention`, by name.

    Arrays among the options, sinks and bias, are the model's too, and train with it. A row whose mask hides every key
    gives 0, where Equinox gives the mean of all values.

    Raises:
        TypeError: something that is no `MultiheadAttention` or no policy, or an option that `attention` does not take
            or the module gives itself.
    """

    attention: eqx.nn.MultiheadAttention
    policy: Any = PAPER
    options: Mapping[str, Any] = eqx.field(converter=dict, default_factory=dict)

    def __check_init__(self) -> None:
        """Check what was given, once: not where JAX rebuilds the module around something else."""
        if not isinstance(self.attention, eqx.nn.MultiheadAttention):
            raise TypeError(f"Sharpened wraps an eqx.nn.MultiheadAttention, got {type(self.attention).__name__}")
        check_policy(self.policy)
        check_options("Sharpened", self.options, OPTIONS)

    def __call__(
        self,
        query: Array,
        key_: Array,
        value: Array,
        mask: Array | None = None,
        *,
        key: Array | None = None,
        inference: bool | None = None,
        process_heads: Any = None,
    ) -> Array:
        """Attend as `MultiheadAttention` does: (T, query size), (S, key size), (S, value size) -> (T, output size)."""
        inner = self.attention
        projections = ((inner.query_proj, query), (inner.key_proj, key_), (inner.value_proj, value))
        heads = tuple(jax.vmap(project)(x).reshape(x.shape[0], inner.num_heads, -1) for project, x in projections)
        if process_heads is not None:
            shapes = [head.shape for head in heads]
            heads = process_heads(*heads)
            if [head.shape for head in heads] != shapes:
                raise ValueError("process_heads must not change the shape of the heads")
        off = inner.dropout.inference if inference is None else inference
        dropout = 0.0 if off else float(inner.dropout.p)
        output = attention(
            *(head[None] for head in heads),
            policy=self.policy,
            mask=mask,
            dropout=dropout,
            dropout_key=key if dropout else None,
            **self.options,
        )
        return jax.vmap(inner.output_proj)(output.reshape(query.shape[0], -1))
