"""One validated call of attention, as every implementation receives it.

Validation happens here, before any work and in one place: an implementation may trust the shapes, and only has to say
(`refusal`) what it cannot serve. Everything here is known while tracing, so it costs nothing under jit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sharpmax.core.checks import check_number, check_shapes, short, with_four_axes
from sharpmax.core.masks import Window, window_ends
from sharpmax.core.policies.base import Policy, needed
from sharpmax.core.softcap import check_softcap
from sharpmax.core.stats import ALWAYS, ON_REQUEST
from sharpmax.jax.logits import Logits
from sharpmax.jax.shapes import Segments

OF_THE_LOGITS = frozenset({"entropy", "logsumexp", "maximum", "minimum", "variance"})


@dataclass(frozen=True, eq=False)
class Request:
    """Arguments of one call, checked: the logits, and what is made of them."""

    logits: Logits
    value: Array  # (B, Hkv, Lk, Dv)
    policy: Any
    dropout: float = 0.0
    dropout_key: Array | None = None
    return_stats: bool = False
    asked: frozenset[str] = frozenset()  # statistics beyond the usual that the caller asks for

    @property
    def wanted(self) -> frozenset[str]:
        """Every statistic that the policy or the caller asks for."""
        return needed(self.policy) | self.asked | (ALWAYS if self.return_stats else frozenset())

    @property
    def extra(self) -> frozenset[str]:
        """Of those, the ones that `RowStats` has only on request."""
        return self.wanted & ON_REQUEST

    @property
    def reads_logits(self) -> bool:
        """Whether a first pass over the logits is needed; a bias needs one to be counted, for -inf masks."""
        iterative = getattr(self.policy, "iterative", False)
        return bool(self.wanted & OF_THE_LOGITS) or iterative or self.logits.bias is not None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute: some axis has length 0."""
        return 0 in (*self.logits.query.shape, *self.logits.key.shape, *self.value.shape)


def validated(
    query: Array,
    key: Array,
    value: Array,
    *,
    policy: Any,
    mask: Array | None = None,
    bias: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: Window = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    segments: Segments = None,
    dropout: float = 0.0,
    dropout_key: Array | None = None,
    return_stats: bool = False,
    asked: frozenset[str] = frozenset(),
) -> Request:
    """Check every argument, put heads before lengths, and return the request, or raise saying what is wrong."""
    arrays = {"query": query, "key": key, "value": value}
    query, key, value = (_check_floating(name, array) for name, array in arrays.items())
    for name, array in arrays.items():
        if array.ndim != 4:
            raise ValueError(f"{name} must be (batch, length, heads, width), got shape {tuple(array.shape)}")
    check_policy(policy)
    is_causal, return_stats = _flag("is_causal", is_causal), _flag("return_stats", return_stats)
    if not query.dtype == key.dtype == value.dtype:
        raise TypeError(f"query, key and value must share a dtype, got {query.dtype}, {key.dtype}, {value.dtype}")
    check_shapes(query.shape, key.shape, value.shape, heads=2)
    batch, queries, heads, width = query.shape
    shape = (batch, heads, queries, key.shape[1])
    if mask is not None:
        if not _is_array(mask) or mask.dtype != jnp.bool_:
            got = getattr(mask, "dtype", type(mask).__name__)
            raise TypeError(f"mask must be a boolean array (True = visible), got {got}; for an additive one use bias")
        mask = with_four_axes("mask", jnp.asarray(mask), shape)
    if bias is not None:
        bias = with_four_axes("bias", _check_floating("bias", bias), shape)
    if sinks is not None:
        sinks = _check_floating("sinks", sinks)
        if sinks.shape != (heads,):
            raise ValueError(f"sinks must have one logit per query head, shape ({heads},), got {sinks.shape}")
    for name, number, above in (("scale", scale, -jnp.inf), ("softcap", softcap, 0.0)):
        if number is not None:
            _check_static(name, number)
            check_number("attention", name, number, above=above, scalar=True)
    check_softcap(softcap)
    query_segments, key_segments = _segments(segments, shape)
    _check_dropout(dropout, dropout_key)
    left, right = window_ends(window) or (None, None)
    return Request(
        logits=Logits(
            query=query.swapaxes(1, 2),
            key=key.swapaxes(1, 2),
            mask=mask,
            bias=bias,
            sinks=sinks,
            query_segments=query_segments,
            key_segments=key_segments,
            query_places=None,
            key_start=None,
            left=left,
            right=0 if is_causal else right,
            scale=float(scale if scale is not None else width**-0.5 if width else 1.0),
            softcap=None if softcap is None else float(softcap),
        ),
        value=value.swapaxes(1, 2),
        policy=policy,
        dropout=float(dropout),
        dropout_key=dropout_key,
        return_stats=return_stats,
        asked=asked,
    )


def check_policy(policy: Any) -> None:
    """Raise unless it is a policy, or a callable that may be one."""
    if isinstance(policy, type) or not (isinstance(policy, Policy) or callable(policy)):
        expected = "a sharpmax policy (PAPER, Constant(1.0), …) or a callable on RowStats"
        raise TypeError(f"policy must be {expected}, got {short(policy)}")


def check_options(owner: str, options: Iterable[str], known: Iterable[str]) -> None:
    """Raise if an option is not a known one."""
    for name in options:
        if name not in known:
            raise TypeError(f"{owner} takes no option {name!r}, only {', '.join(known)}")


def _is_array(array: Any) -> bool:
    return isinstance(array, jax.Array) or type(array).__module__ == "numpy"


def _check_floating(name: str, array: Any) -> Array:
    if not _is_array(array):
        raise TypeError(f"{name} must be a JAX array, got {type(array).__name__}")
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{name} must have a real floating dtype, got {array.dtype}; cast it first")
    return jnp.asarray(array)


def _check_static(name: str, number: Any) -> None:
    if isinstance(number, jax.Array):
        raise TypeError(f"{name} must be a Python number (it is part of the compiled program), got {short(number)}")


def _flag(name: str, flag: Any) -> bool:
    if not isinstance(flag, bool | np.bool_):
        raise TypeError(f"{name} must be True or False (it is part of the compiled program), got {short(flag)}")
    return bool(flag)


def _check_dropout(dropout: Any, dropout_key: Any) -> None:
    _check_static("dropout", dropout)
    check_number("attention", "dropout", dropout, scalar=True)
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be in [0, 1), got {dropout!r}")
    if dropout and dropout_key is None:
        raise ValueError("dropout draws from dropout_key, and none came: pass a jax.random key")
    if dropout_key is not None and not _is_array(dropout_key):
        raise TypeError(f"dropout_key must be a jax.random key, got {short(dropout_key)}")


def _segments(segments: Segments, logits: tuple[int, int, int, int]) -> tuple[Array | None, Array | None]:
    """Return the segments of queries and of keys, each (B, length)."""
    if segments is None:
        return None, None
    pair = segments if isinstance(segments, tuple) else (segments, segments)
    if len(pair) != 2:
        raise ValueError(f"segments must be one array or a tuple (of queries, of keys), got {len(pair)} of them")
    for name, array, length in zip(("queries", "keys"), pair, logits[2:], strict=True):
        if not _is_array(array) or not jnp.issubdtype(array.dtype, jnp.integer):
            got = getattr(array, "dtype", type(array).__name__)
            raise TypeError(f"segments of {name} must be an integer array (or a tuple of two), got {got}")
        if array.shape != (logits[0], length):
            raise ValueError(f"segments of {name} must be (batch, length) = {(logits[0], length)}, got {array.shape}")
        kept = jnp.asarray(array).dtype  # of 32 bits, unless JAX was told to keep 64
        if kept != array.dtype and (array.astype(kept) != array).any():  # two documents could become one
            raise ValueError(f"segments of {name} do not fit in {kept}: number them from 0, or enable jax_enable_x64")
    return jnp.asarray(pair[0]), jnp.asarray(pair[1])
