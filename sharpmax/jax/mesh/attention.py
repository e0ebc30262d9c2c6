"""Attention over a sequence sharded on an axis of a device mesh: the same call, the same laws, no device with all keys.

Statistics and values are two functions under `shard_map`; the policy between them is plain JAX on the sharded
statistics, so any policy works and learns. Three schedules, and a count of the bytes that each moves decides:

    heads     heads are dealt out in place of lengths (`heads.py`)
    ring      queries and keys are sharded; keys go round (`ring.py`)
    reduce    keys are sharded, queries are on every device; row states are merged (`reduce.py`)
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from types import ModuleType
from typing import Any, NamedTuple

import jax
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sharpmax.core.checks import short
from sharpmax.core.policies import PAPER
from sharpmax.core.softmax import say_if_silent
from sharpmax.core.stats import RowStats
from sharpmax.jax.chunked.blocks import block_size
from sharpmax.jax.logits import Logits, count_alone
from sharpmax.jax.mesh import heads, reduce, ring
from sharpmax.jax.request import check_options, validated
from sharpmax.jax.shapes import Attended, Key, Query, Value
from sharpmax.jax.three_steps import attend_in_three_steps
from sharpmax.jax.watching.collect import collect, wants_stats

SCHEDULES: dict[str, ModuleType] = {"heads": heads, "ring": ring, "reduce": reduce}
OPTIONS = ("mask", "bias", "is_causal", "scale", "window", "softcap", "sinks", "segments", "dropout", "dropout_key")


class Layout(NamedTuple):
    """The mesh, which of its axes carry sequence, batch and heads, and the schedule."""

    mesh: Mesh
    axis: str
    batch_axis: str | None
    head_axis: str | None
    schedule: str

    @property
    def devices(self) -> int:
        """How many devices share the sequence."""
        return int(self.mesh.shape[self.axis])

    @property
    def rows(self) -> P:
        """The spec of anything (B, H, Lq, …)."""
        if self.schedule == "heads":
            return P(self.batch_axis, self._heads, None)
        return P(self.batch_axis, self.head_axis, self.axis if self.schedule == "ring" else None)

    @property
    def keys(self) -> P:
        """The spec of anything (B, Hkv, Lk, …)."""
        return self.rows if self.schedule == "heads" else P(self.batch_axis, self.head_axis, self.axis)

    @property
    def _heads(self) -> Any:
        return self.axis if self.head_axis is None else (self.head_axis, self.axis)

    def placed(self, array: Array, spec: P) -> Array:
        """Return the array where the spec wants it: outside jit it is moved at once."""
        placed: Array = jax.lax.with_sharding_constraint(array, NamedSharding(self.mesh, spec))
        return placed

    def of_logits(self, logits: Logits) -> Logits:
        """Return the spec of each array of the logits; mask, bias and segments keep all their columns."""

        batch, _, queries = self.rows
        specs: dict[str, Any] = {
            "query": self.rows,
            "key": self.keys,
            "mask": None if logits.mask is None else self._of_pairs(logits.mask),
            "bias": None if logits.bias is None else self._of_pairs(logits.bias),
            "sinks": None if logits.sinks is None else P(self.rows[1]),
            "query_segments": None if logits.query_segments is None else P(batch, queries),
            "key_segments": None if logits.key_segments is None else P(batch, None),
            "query_places": P(queries),
        }
        return replace(logits, **specs)

    def _of_pairs(self, array: Array) -> P:
        return P(*(None if n == 1 else name for n, name in zip(array.shape[:3], self.rows, strict=True)))


def sharded_attention(
    query: Query,
    key: Key,
    value: Value,
    *,
    mesh: Mesh,
    axis: str,
    batch_axis: str | None = None,
    head_axis: str | None = None,
    schedule: str | None = None,
    policy: Any = PAPER,
    return_stats: bool = False,
    **options: Any,
) -> Attended:
    """Attend as `attention` does, with the sequence shared by the devices of `axis` of `mesh`.

    `batch_axis` and `head_axis` name mesh axes for those, if any. `options` are mask, bias, is_causal, scale, window,
    softcap, sinks and segments, of the global sequence. Mask and bias keep all their columns, and by 'heads' all their
    rows, which are else sharded with the queries. Nothing needs to be placed beforehand, and what is placed so already
    does not move; but arrays that were put on other devices than the mesh's must be moved to it first, or JAX raises.
    `schedule` is 'heads', 'ring' or 'reduce'; None takes the one that can serve and moves the fewest bytes
    (`bytes_moved`). The output is sharded by length; by 'reduce' it is on every device, and by 'heads' sharded by head
    if the devices do not divide the length. Inside `collecting()` its rows are counted too.

    Raises:
        ValueError: a length, batch or head count that its mesh axis does not divide; an unknown axis or schedule; a
            mesh whose axes are not of the automatic kind (`jax.sharding.AxisType.Auto`).
        NotImplementedError: dropout, and arrays with an axis of length 0.

    >>> sharded_attention(q, k, v, mesh=mesh, axis="sequence", is_causal=True).shape  # doctest: +SKIP
    (1, 64, 4, 16)
    """
    check_options("sharded_attention", options, OPTIONS)
    request = validated(query, key, value, policy=policy, return_stats=wants_stats(return_stats), **options)
    if request.dropout or request.is_empty:
        raise NotImplementedError("a sharded sequence is served without dropout and with no axis of length 0")
    layout = _layout(request.logits, value.shape[3], mesh, axis, batch_axis, head_axis, schedule)
    placed = replace(request, logits=replace(request.logits, query_places=request.logits.places))
    if layout.schedule == "heads":  # once, before either pass needs it
        logits = placed.logits
        q, k, v = (layout.placed(array, layout.rows) for array in (logits.query, logits.key, request.value))
        placed = replace(placed, logits=replace(logits, query=q, key=k), value=v)
    statistics = partial(_statistics, layout) if request.reads_logits else count_alone
    by_position = not request.reads_logits
    output, stats = attend_in_three_steps(placed, statistics, partial(_weighted, layout), by_position=by_position)
    collect(request.logits, stats)
    if return_stats:
        say_if_silent(policy, stats)
    output = output.swapaxes(1, 2)
    if layout.schedule == "heads" and output.shape[1] % layout.devices == 0:
        output = layout.placed(output, P(batch_axis, axis, head_axis))
    return (output, stats) if return_stats else output


def bytes_moved(logits: Logits, value_width: int, devices: int, schedule: str) -> int:
    """Return the bytes that a device sends in the forward pass by the given schedule.

    heads: all but an n-th of its shard of Q, K, V and of the output, and of a mask or bias, which without heads of its
    own every device needs whole. ring: K for the statistics, K and V for the values, n times each (the last exchange
    brings them home). reduce: the queries once, a state of seven numbers per row to n - 1 others, and an all-reduce of
    (m, Z, O), about twice its size.

    >>> bytes_moved(request.logits, 64, devices=8, schedule="ring")  # doctest: +SKIP
    """
    batch, heads, queries = logits.rows
    width, key_heads = logits.query.shape[3], logits.key.shape[1]
    if schedule == "heads":
        numbers = batch * (heads * queries + key_heads * logits.key.shape[2]) * (width + value_width)
        pairs = [array for array in (logits.mask, logits.bias) if array is not None]
        shards = sum(array.nbytes * (devices if array.shape[1] == 1 else 1) for array in pairs)
        return (numbers * logits.query.dtype.itemsize + shards) * (devices - 1) // devices**2
    if schedule == "ring":
        local = logits.key.shape[2] // devices
        return batch * key_heads * local * (2 * width + value_width) * logits.query.dtype.itemsize * devices
    numbers = 7 * (devices - 1) + 2 * (value_width + 2)
    return batch * heads * queries * (numbers * logits.wide.itemsize + width * logits.query.dtype.itemsize)


def _layout(
    logits: Logits,
    value_width: int,
    mesh: Mesh,
    axis: str,
    batch_axis: str | None,
    head_axis: str | None,
    schedule: str | None,
) -> Layout:
    """Check what the mesh must divide, and choose the schedule."""
    if not isinstance(getattr(mesh, "shape", None), Mapping):
        raise TypeError(f"mesh must be a jax.sharding.Mesh, got {short(mesh)}")
    chosen = {"axis": axis, "batch_axis": batch_axis, "head_axis": head_axis}
    for role, name in chosen.items():
        if (name is not None or role == "axis") and name not in list(mesh.shape):
            raise ValueError(f"{role} must name an axis of the mesh ({', '.join(map(str, mesh.shape))}), got {name!r}")
        if role != "axis" and name is not None and list(chosen.values()).count(name) > 1:
            raise ValueError(f"{role} needs a mesh axis of its own, got {name!r} twice")
    if any(kind != AxisType.Auto for kind in mesh.axis_types):
        raise ValueError(
            f"the mesh's axes must be of the automatic kind, got {mesh.axis_types}; "
            "make it with jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(names))"
        )
    if schedule is not None and schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)} or None, got {schedule!r}")
    devices = int(mesh.shape[axis])
    by_bytes = sorted(SCHEDULES, key=lambda name: bytes_moved(logits, value_width, devices, name))
    layouts = {name: Layout(mesh, axis, batch_axis, head_axis, name) for name in by_bytes}
    reasons = {name: _uneven(logits, layout) for name, layout in layouts.items()}
    if schedule is None:  # if none can serve, the least demanding says why
        schedule = next((name for name in by_bytes if reasons[name] is None), "reduce")
    if (reason := reasons[schedule]) is not None:
        raise ValueError(reason)
    return layouts[schedule]


def _uneven(logits: Logits, layout: Layout) -> str | None:
    """Return what the mesh does not divide that the schedule needs divided, or None."""
    batch, _, queries = logits.rows
    _, key_heads, keys, _ = logits.key.shape
    mesh, axis, batch_axis, head_axis, schedule = layout
    wanted: list[tuple[str, int, tuple[str | None, ...]]] = [("sequences in the batch", batch, (batch_axis,))]
    if schedule == "heads":
        wanted += [("key heads", key_heads, (head_axis, axis))]
    else:
        wanted += [("keys", keys, (axis,)), ("key heads", key_heads, (head_axis,))]
        wanted += [("queries", queries, (axis,))] if schedule == "ring" else []
    for what, count, over in wanted:
        names = [name for name in over if name is not None]
        devices = prod(mesh.shape[name] for name in names)
        if count % devices:
            said = " and ".join(map(repr, names))
            hint = "; pad them, and hide the padding by a mask" if what in ("keys", "queries") else ""
            return f"{count} {what} cannot be shared evenly by the {devices} devices of mesh axis {said}{hint}"
    return None


def _statistics(layout: Layout, logits: Logits, *, row_scale: Array | None, extra: frozenset[str]) -> RowStats:
    row_scale = None if row_scale is None else jax.lax.stop_gradient(row_scale)
    stats: RowStats = _compiled_statistics(layout, logits, row_scale, extra)
    return stats


@partial(jax.jit, static_argnums=(0, 3))
def _compiled_statistics(layout: Layout, logits: Logits, row_scale: Array | None, extra: frozenset[str]) -> Any:
    def local(logits: Logits, row_scale: Array | None) -> Any:
        return SCHEDULES[layout.schedule].statistics(logits, row_scale, extra, block_size(logits), layout.axis)

    scale_spec = None if row_scale is None else layout.rows
    return _shared(layout, local, (layout.of_logits(logits), scale_spec))(logits, row_scale)


@partial(jax.jit, static_argnums=0)
def _weighted(layout: Layout, logits: Logits, value: Array, beta: Array) -> Array:
    def local(logits: Logits, value: Array, beta: Array) -> Any:
        return SCHEDULES[layout.schedule].weighted(logits, value, beta, block_size(logits), layout.axis)

    specs = (layout.of_logits(logits), layout.keys, layout.rows)
    output: Array = _shared(layout, local, specs)(logits, value, beta)
    return output


def _shared(layout: Layout, local: Callable[..., Any], specs: tuple) -> Callable[..., Any]:
    # What is the same on several devices is known to be so by construction, not to the checker.
    return jax.shard_map(local, mesh=layout.mesh, in_specs=specs, out_specs=layout.rows, check_vma=False)
