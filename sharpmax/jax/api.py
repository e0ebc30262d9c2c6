"""Call attention whose rows choose their own temperature; `dispatch.py` decides what serves the call."""

import inspect
from typing import Any

from jax import Array

from sharpmax.core.masks import Window
from sharpmax.core.policies import PAPER, Constant
from sharpmax.core.stats import RowStats, checked_extra
from sharpmax.jax.dispatch import Plan, attend, plan, row_statistics
from sharpmax.jax.request import validated
from sharpmax.jax.shapes import Attended, Bias, Key, Mask, Query, Segments, Sinks, Value
from sharpmax.jax.watching.collect import collect, wants_stats


def attention(
    query: Query,
    key: Key,
    value: Value,
    *,
    policy: Any = PAPER,
    mask: Mask = None,
    bias: Bias = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: Window = None,
    softcap: float | None = None,
    sinks: Sinks = None,
    segments: Segments = None,
    dropout: float = 0.0,
    dropout_key: Array | None = None,
    implementation: str | None = None,
    return_stats: bool = False,
) -> Attended:
    """Attend with query (B, T, N, H) to key (B, S, K, H) and value (B, S, K, Hv); return (B, T, N, Hv).

    As `jax.nn.dot_product_attention`, with a temperature per row that `policy` chooses from the row's statistics. N is
    a multiple of K. `mask` is boolean, True = visible; `bias` is added to the logits; both broadcast to (B, N, T, S).
    `is_causal` and `window` align the last query with the last key; an int W shows the last W keys, a pair
    (left, right) is inclusive. `scale` is 1/sqrt(H) unless given. `softcap` c makes the logits c·tanh(e/c), before
    bias and beta. `sinks` (N,) adds one item of that logit and zero value to each row. `segments`, integers (B, T) or
    a pair of (B, T) and (B, S), lets a query see only keys of its own segment: several documents in one sequence.
    `dropout` is applied to the weights, drawn from `dropout_key`.

    `return_stats=True` returns `(output, RowStats)`: entropy, logsumexp, maximum, count and inverse_temperature, each
    (B, N, T) in float32 or wider, with gradients. A query that sees no key gives 0. Inside `collecting()` its rows are
    counted too.

    `implementation` names one of `IMPLEMENTATIONS`; None takes the fastest that can serve, as `which_implementation`
    tells. Forward mode alone (`jax.jvp`, `jax.jacfwd`) and reverse mode twice need 'xla': the others have a reverse
    rule of their own.

    Raises:
        TypeError, ValueError: arguments that do not fit together, before any work.
        NotImplementedError: the named implementation cannot serve this request; the message says why.

    >>> import jax
    >>> q = jax.random.normal(jax.random.key(0), (1, 8, 4, 16)); k = q[:, :, :2]
    >>> attention(q, k, k, is_causal=True).shape
    (1, 8, 4, 16)
    """
    request = validated(
        query,
        key,
        value,
        policy=policy,
        mask=mask,
        bias=bias,
        is_causal=is_causal,
        scale=scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
        segments=segments,
        dropout=dropout,
        dropout_key=dropout_key,
        return_stats=wants_stats(return_stats),
    )
    output, stats = attend(request, implementation)
    collect(request.logits, stats)
    return (output, stats) if return_stats else output


def row_stats(
    query: Query,
    key: Key,
    *,
    extra: frozenset[str] = frozenset(),
    mask: Mask = None,
    bias: Bias = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: Window = None,
    softcap: float | None = None,
    sinks: Sinks = None,
    segments: Segments = None,
    implementation: str | None = None,
) -> RowStats:
    """Return the statistics of attention's rows, each (batch, query head, query), without attending.

    `extra` may name "minimum" and "variance". Differentiable; O(n) memory but by 'xla'.

    Raises:
        TypeError, ValueError, NotImplementedError: as `attention`, whose arguments these are.

    >>> import jax.numpy as jnp
    >>> q = jnp.zeros((1, 1, 1, 8)); k = jnp.zeros((1, 5, 1, 8))
    >>> round(float(jnp.exp(row_stats(q, k).entropy[0, 0, 0])), 4)
    5.0
    """
    request = validated(
        query,
        key,
        key,
        policy=Constant(1.0),
        mask=mask,
        bias=bias,
        is_causal=is_causal,
        scale=scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
        segments=segments,
        return_stats=True,
        asked=checked_extra(extra),
    )
    return row_statistics(request, implementation)


def which_implementation(query: Query, key: Key, value: Value, **arguments: Any) -> Plan:
    """Tell which implementation and kernels `attention` takes for these arguments, and why the faster ones refuse.

    Raises:
        TypeError, ValueError, NotImplementedError: as `attention`, whose arguments these are.

    >>> import jax.numpy as jnp
    >>> x = jnp.ones((1, 4, 1, 8))
    >>> which_implementation(x, x, x, implementation="chunked")
    Plan(implementation='chunked', refused={}, statistics='chunked', values='chunked')
    """
    inspect.signature(attention).bind(query, key, value, **arguments)  # names what `attention` does not take
    implementation = arguments.pop("implementation", None)
    wanted = wants_stats(arguments.pop("return_stats", False))
    return plan(validated(query, key, value, **{"policy": PAPER, **arguments, "return_stats": wanted}), implementation)
