"""Attention for Flax: an `attention_fn` for `MultiHeadAttention`, of linen and of nnx alike. Imports no Flax.

    nnx.MultiHeadAttention(..., attention_fn=attention_fn(policy))
    nn.MultiHeadDotProductAttention(..., attention_fn=attention_fn(policy))

Every argument that Flax passes is honoured, or raises.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from sharpmax.core.policies import PAPER
from sharpmax.core.policies.base import needed
from sharpmax.jax.api import attention
from sharpmax.jax.request import check_options, check_policy

OPTIONS = ("scale", "window", "softcap", "sinks", "segments", "implementation")


def attention_fn(policy: Any = PAPER, **options: Any) -> Callable[..., Array]:
    """Return a function that Flax can take for `dot_product_attention`.

    `options` are those of `attention` that Flax does not give: scale, window, softcap, sinks, segments, implementation.

    A mask may have any dtype, as Flax's own float32 ones do: what is not 0 is visible.
    A row whose mask hides every key gives 0, where Flax gives the mean of all values. A window, and a policy that reads
    positions, are refused where a mask comes with other numbers of queries and keys, as in decoding with Flax's cache.
    Products are always in float32 or wider, whatever `precision` and `force_fp32_for_softmax` say. Weights are never
    formed, so they cannot be sown; and dropout is drawn for each weight, so `broadcast_dropout` must be False with it.

    Raises:
        TypeError: something that is no policy, or an option that `attention` does not take or that Flax gives itself.

    >>> nnx.MultiHeadAttention(4, in_features=16, attention_fn=attention_fn(PAPER), rngs=rngs)  # doctest: +SKIP
    """
    check_policy(policy)
    check_options("attention_fn", options, OPTIONS)

    def sharpened_attention(
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None = None,
        mask: Array | None = None,
        broadcast_dropout: bool = True,
        dropout_rng: Array | None = None,
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        dtype: Any = None,
        precision: Any = None,
        module: Any = None,
        force_fp32_for_softmax: bool = False,
        qk_attn_weights_einsum: Any = None,
        attn_weights_value_einsum: Any = None,
        is_causal: bool = False,
    ) -> Array:
        """Attention of query (…, T, N, H) on key and value (…, S, K, H); mask and bias broadcast to (…, N, T, S)."""
        del precision, force_fp32_for_softmax  # exceeded
        if module is not None:
            raise NotImplementedError("attention weights are never formed, so they cannot be sown")
        if qk_attn_weights_einsum is not None or attn_weights_value_einsum is not None:
            raise NotImplementedError("the products are fused: a custom einsum cannot take their place")
        dropout = 0.0 if deterministic else dropout_rate
        if dropout and broadcast_dropout:
            raise NotImplementedError("dropout is drawn for each weight: pass broadcast_dropout=False")
        if is_causal and query.shape[-3] != key.shape[-3]:
            raise NotImplementedError("Flax aligns is_causal with the first key, sharpmax with the last: pass a mask")
        if mask is not None and query.shape[-3] != key.shape[-3]:
            if "position" in needed(policy):
                raise NotImplementedError(
                    "the policy reads positions, which Flax does not tell where a mask hides the rest of a cache; take "
                    "a policy that reads the count of keys"
                )
            if options.get("window") is not None:
                raise NotImplementedError(
                    "a window counts from the last key, and Flax does not tell which that is where a mask hides the "
                    "rest of a cache; give the window as a part of the mask"
                )
        if dtype is not None:
            query, key, value = (array.astype(dtype) for array in (query, key, value))
        leading = query.shape[:-3]
        if not leading == key.shape[:-3] == value.shape[:-3]:
            shapes = (query.shape, key.shape, value.shape)
            raise ValueError(f"query, key and value must share the axes before the length, got {shapes}")
        output: Array = attention(
            *(array.reshape(-1, *array.shape[-3:]) for array in (query, key, value)),
            policy=policy,
            mask=None if mask is None else _flat(jnp.asarray(mask, bool), leading),
            bias=None if bias is None else _flat(bias, leading),
            is_causal=is_causal,
            dropout=dropout,
            dropout_key=dropout_rng,
            **options,
        )
        return output.reshape(*leading, *output.shape[1:])

    return sharpened_attention


def _flat(array: Array, leading: tuple[int, ...]) -> Array:
    """Return what broadcasts to (…, N, T, S) with its leading axes made one, as those of the query are."""
    *own, heads, queries, keys = (1,) * (3 - array.ndim) + array.shape
    if set(own) <= {1}:
        return array.reshape(1, heads, queries, keys)
    return jnp.broadcast_to(array, (*leading, heads, queries, keys)).reshape(-1, heads, queries, keys)
