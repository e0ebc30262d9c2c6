"""Row statistics of attention logits, whole or in blocks.

For a row of logits e with weights p = softmax(e), shifted by its maximum m:

    Z = Σ exp(e - m)     S = Σ (e - m) exp(e - m)     T = Σ (e - m)² exp(e - m)
    logsumexp = m + log Z     entropy = log Z - S/Z  (= logsumexp - E_p[e], nats)     variance = T/Z - (S/Z)²

(m, Z, S, T) is a state that merges associatively, so a row may be seen in blocks of any size, on any number of
devices, in O(1) memory per row: the online softmax of Milakov & Gimelshein (arXiv 1805.02867), carried to the entropy.
No epsilon is needed anywhere: a masked item adds exactly nothing.
"""

import operator
from collections.abc import Callable, Collection
from typing import NamedTuple, SupportsIndex

from sharpmax.core.arrays import (
    Array,
    clamp,
    floating_array,
    namespace,
    require_same_library,
    stop_gradient,
    widen,
)

# Shifted logits stop here. exp(FLOOR) is 0 in every dtype, and FLOOR² is finite in float32, so an item at the floor
# adds 0 to Z, S and T where -inf would add 0·inf = NaN. FLOOR times the smallest scale a row may get is still -1e6.
FLOOR = -1e18


class RowStats(NamedTuple):
    """Statistics of each row of logits; every field has the logits' shape without the row axis.

    All share one dtype, float32 or wider, `count` too (so that a policy may take its logarithm). The last four are
    None unless asked for. In attention every field is (batch, query head, query), in all frameworks.
    """

    entropy: Array = None
    """H = logsumexp - E_p[e], in nats."""
    logsumexp: Array = None
    maximum: Array = None
    count: Array = None
    """n, the number of visible items: a masked or -inf logit is not one. Beyond 2^24, float32 holds the nearest."""
    minimum: Array = None
    """The smallest visible logit."""
    variance: Array = None
    """Var_p(e)."""
    position: Array = None
    """Index of the query among the keys, from 0; known to attention, not to a bare row."""
    inverse_temperature: Array = None
    """beta, after a policy has chosen it."""

    def amended(self, **fields: Array) -> "RowStats":
        """Return the statistics with some fields changed: as `_replace`, which PyTorch before 2.13 cannot compile."""
        return RowStats(**{**self._asdict(), **fields})

    def mapped(self, function: Callable[[Array], Array]) -> "RowStats":
        """Return what a function makes of every field that is there.

        >>> RowStats(entropy=0.5, count=3.0).mapped(lambda field: 2 * field).count
        6.0
        """
        return RowStats(*(None if field is None else function(field) for field in self))


StatsAt = Callable[[Array], RowStats]
"""The statistics pass again, of the rows scaled by the given beta: what an iterative policy is handed.

One with a true `follows_beta` is differentiable in beta itself; others hold the scale constant."""

ALWAYS = frozenset({"entropy", "logsumexp", "maximum", "count"})
ON_REQUEST = frozenset({"minimum", "variance"})


def row_stats(logits: Array, *, axis: int = -1, where: Array | None = None, extra: Collection[str] = ()) -> RowStats:
    """Compute the statistics of each row of `logits` along `axis`.

    `where` is a boolean mask, True = visible, broadcastable to the logits; a logit of -inf counts as masked.
    `extra` names statistics beyond the usual four: "minimum", "variance". A row with no visible item has
    entropy 0, count 0 and logsumexp = maximum = -inf.

    Raises:
        TypeError: logits that are not a floating array, or a mask that is not boolean.
        ValueError: an axis, a mask shape or an extra statistic that does not exist.

    >>> import numpy as np
    >>> stats = row_stats(np.log([[1.0, 1.0, 2.0, 4.0]]), where=np.array([True, True, True, False]))
    >>> print(stats.count, stats.entropy.round(4))
    [3.] [1.0397]
    """
    return StreamState.of(logits, axis=axis, where=where, extra=extra).stats()


def checked_extra(extra: Collection[str]) -> frozenset[str]:
    """Return the statistics asked for beyond the usual four.

    Raises:
        ValueError: anything but a collection of names of `ON_REQUEST`.
    """
    if isinstance(extra, str) or not isinstance(extra, Collection) or not set(extra) <= ON_REQUEST:
        raise ValueError(f"extra may name {sorted(ON_REQUEST)}, in a set or list, got {extra!r}")
    return frozenset(extra)


class StreamState(NamedTuple):
    """What has been seen of each row so far: (maximum, Z, S, T, count, minimum); merge is associative.

    T and minimum are None unless asked for.

    >>> import numpy as np
    >>> row = np.arange(6.0)
    >>> whole = StreamState.of(row[:4]).merge(StreamState.of(row[4:])).stats()
    >>> bool(np.isclose(whole.entropy, row_stats(row).entropy))
    True
    """

    maximum: Array
    Z: Array
    S: Array
    count: Array
    T: Array = None
    minimum: Array = None

    @classmethod
    def of(
        cls, logits: Array, *, axis: int = -1, where: Array | None = None, extra: Collection[str] = ()
    ) -> "StreamState":
        """Return the state after seeing `logits` along `axis`; arguments, and what is raised, as in `row_stats`."""
        extra = checked_extra(extra)
        rows = masked_rows(logits, axis=axis, where=where)
        shifted, maximum = shift(rows)
        return cls.of_shifted(
            shifted,
            maximum,
            count=visible_count(rows),
            minimum=visible_minimum(rows) if "minimum" in extra else None,
            variance="variance" in extra,
        )

    @classmethod
    def of_shifted(
        cls,
        shifted: Array,
        maximum: Array,
        *,
        count: Array = None,
        minimum: Array = None,
        variance: bool = False,
    ) -> "StreamState":
        """Return the state of rows that `shift` has already shifted, along the last axis."""
        xp = namespace(shifted)
        weight = xp.exp(shifted)
        first = shifted * weight
        return cls(
            maximum=maximum,
            Z=xp.sum(weight, axis=-1),
            S=xp.sum(first, axis=-1),
            count=count,
            T=xp.sum(shifted * first, axis=-1) if variance else None,
            minimum=minimum,
        )

    def merge(self, other: "StreamState") -> "StreamState":
        """Return the state after seeing both parts; the order does not matter. What only one of them has is None."""
        xp = namespace(self.Z)
        maximum = xp.maximum(self.maximum, other.maximum)
        parts = [state._shifted_to(maximum) for state in (self, other)]
        return StreamState(
            maximum=maximum,
            Z=parts[0].Z + parts[1].Z,
            S=parts[0].S + parts[1].S,
            count=None if self.count is None or other.count is None else self.count + other.count,
            T=None if self.T is None or other.T is None else parts[0].T + parts[1].T,
            minimum=None if self.minimum is None or other.minimum is None else xp.minimum(self.minimum, other.minimum),
        )

    def _shifted_to(self, maximum: Array) -> "StreamState":
        """Re-express Z, S and T about another maximum: with d = m - m' and c = exp(d), c(T + 2dS + d²Z) and so on."""
        xp = namespace(self.Z)
        target = finite_maximum(stop_gradient(maximum))
        # An empty part has m = -inf and sums of 0: it moves by 0.
        origin = xp.where(self.maximum == -xp.inf, target, stop_gradient(self.maximum))
        d = clamp(origin - target, FLOOR)
        c = xp.exp(d)
        cd = c * d  # before d² or Z: where c underflows to 0 the part must vanish, not become 0·inf
        return self._replace(
            Z=c * self.Z,
            S=c * self.S + cd * self.Z,
            T=None if self.T is None else c * self.T + 2 * cd * self.S + cd * d * self.Z,
        )

    def stats(self) -> RowStats:
        """Return the statistics of everything seen."""
        xp = namespace(self.Z)
        empty = self.Z == 0
        zero = xp.zeros_like(self.Z)
        Z = xp.where(empty, xp.ones_like(self.Z), self.Z)
        mean = self.S / Z
        logsumexp = stop_gradient(finite_maximum(self.maximum)) + xp.log(Z)
        return RowStats(
            # Rounding may leave -1e-8 where H is 0.
            entropy=xp.maximum(xp.log(Z) - mean, zero),
            logsumexp=xp.where(empty, xp.full_like(Z, -xp.inf), logsumexp),
            maximum=self.maximum,
            count=self.count,
            minimum=self.minimum,
            variance=None if self.T is None else xp.maximum(self.T / Z - mean * mean, zero),
        )


def masked_rows(logits: Array, *, axis: int = -1, where: Array | None = None) -> Array:
    """Validate, widen to float32 or float64, write -inf where masked, and move the row axis last."""
    floating_array("logits", logits)
    axis = checked_axis(axis, logits)
    rows = widen(logits)
    if where is not None:
        xp = namespace(rows)
        rows = xp.where(boolean_mask(where, rows), rows, xp.full_like(rows, -xp.inf))
    return rows if axis == -1 else namespace(rows).moveaxis(rows, axis, -1)


def checked_axis(axis: int, logits: Array) -> int:
    """Return the axis counted from the end, or raise saying which there are."""
    if isinstance(axis, SupportsIndex) and not isinstance(axis, bool):
        index = operator.index(axis)
        if -logits.ndim <= index < logits.ndim:
            return index if index < 0 else index - logits.ndim
    raise ValueError(f"axis must be an int within the {logits.ndim} axes of logits, got {axis!r}")


def boolean_mask(where: Array, rows: Array, name: str = "where") -> Array:
    """Return the mask broadcast to the rows' shape, or raise saying what is wrong with it."""
    xp = namespace(rows)
    require_same_library(name, where, rows)
    if where.dtype != xp.bool:
        raise TypeError(f"{name} must be boolean (True = visible), got {where.dtype}; for an additive mask use bias")
    try:
        return xp.broadcast_to(where, rows.shape)
    except (ValueError, RuntimeError):
        raise ValueError(
            f"{name} of shape {tuple(where.shape)} does not broadcast to the logits' {tuple(rows.shape)}"
        ) from None


def shift(rows: Array) -> tuple[Array, Array]:
    """Return `max(rows - m, FLOOR)` and the maximum m along the last axis (-inf for an empty row)."""
    xp = namespace(rows)
    if rows.shape[-1] == 0:
        return rows, xp.full_like(xp.sum(rows, axis=-1), -xp.inf)
    maximum = xp.max(rows, axis=-1)
    origin = stop_gradient(finite_maximum(maximum))
    return clamp(rows - origin[..., None], FLOOR), maximum


def finite_maximum(maximum: Array) -> Array:
    """Return the maximum, with 0 for an empty row, so that subtracting it gives no NaN."""
    xp = namespace(maximum)
    return xp.where(maximum == -xp.inf, xp.zeros_like(maximum), maximum)


def visible_count(rows: Array) -> Array:
    """Count the items of each row that are not -inf, in the rows' dtype."""
    xp = namespace(rows)
    # Integers, rounded once: a float32 that holds 2^24 stays there whatever ones are added.
    return xp.astype(xp.sum(xp.astype(rows != -xp.inf, xp.int32), axis=-1), rows.dtype)


def visible_minimum(rows: Array) -> Array:
    """Return the smallest visible item of each row (+inf for an empty row)."""
    xp = namespace(rows)
    if rows.shape[-1] == 0:
        return xp.full_like(xp.sum(rows, axis=-1), xp.inf)
    return xp.min(xp.where(rows == -xp.inf, xp.full_like(rows, xp.inf), rows), axis=-1)
