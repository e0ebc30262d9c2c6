"""Keys travel, queries stay: attention over a sequence that no device holds whole.

Device r of n holds queries and keys [r·L/n, (r + 1)·L/n). In n steps every device's keys visit every other, by
neighbour exchange; each visit folds one shard of keys into the rows' associative state, so a device never holds more
than its own keys, a visitor's and the next one's. Backward goes round once more, the gradients of the keys travelling
with them until they are home.
(Ring attention, Liu et al., arXiv 2310.01889, carried to the row statistics.)
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from sharpmax.jax.chunked.blocks import Gradients, Size
from sharpmax.jax.chunked.statistics import Seen, stream, stream_back, stream_sinks_back
from sharpmax.jax.chunked.values import Gathered, Sent, gather, gather_back, gather_sinks_back
from sharpmax.jax.logits import Logits


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def statistics(logits: Logits, row_scale: Array | None, extra: frozenset[str], size: Size, axis: str) -> Any:
    """Return the statistics of this device's rows over all keys; call it inside `shard_map`."""
    return _statistics_forward(logits, row_scale, extra, size, axis)[0]


def _statistics_forward(logits: Logits, row_scale: Array | None, extra: frozenset[str], size: Size, axis: str) -> Any:
    def visit(source: Array, seen: Seen, key: Array) -> Seen:
        return seen.merge(stream(logits.meeting(key, source * key.shape[2]), row_scale, extra, size))

    seen = _around(axis, visit, Seen.nothing(logits.rows, logits.wide, extra), logits.key)
    seen = seen.with_sinks(logits, row_scale)
    stats = seen.state.stats()
    return stats, (logits, row_scale, seen, stats)


def _statistics_backward(extra: frozenset[str], size: Size, axis: str, saved: Any, incoming: Any) -> Any:
    logits, row_scale, seen, stats = saved

    def visit(source: Array, key: Array) -> Gradients:
        return stream_back(logits.meeting(key, source * key.shape[2]), row_scale, seen, stats, incoming, size)

    found = _around_and_home(axis, visit, logits, (logits.key,))
    return found.of(logits, stream_sinks_back(logits, row_scale, seen, stats, incoming)), None


statistics.defvjp(_statistics_forward, _statistics_backward)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def weighted(logits: Logits, value: Array, beta: Array, size: Size, axis: str) -> Any:
    """Return softmax(beta·e)·v of this device's rows over all keys; call it inside `shard_map`."""
    return _weighted_forward(logits, value, beta, size, axis)[0]


def _weighted_forward(logits: Logits, value: Array, beta: Array, size: Size, axis: str) -> Any:
    def visit(source: Array, gathered: Gathered, key_value: tuple[Array, Array]) -> Gathered:
        key, value = key_value
        return gathered.merge(gather(logits.meeting(key, source * key.shape[2]), value, beta, size), beta)

    nothing = Gathered.nothing(logits.rows, value.shape[3], logits.wide)
    gathered = _around(axis, visit, nothing, (logits.key, value)).with_sinks(logits, beta)
    return gathered.output.astype(logits.query.dtype), (logits, value, beta, gathered)


def _weighted_backward(size: Size, axis: str, saved: Any, d_output: Array) -> Any:
    logits, value, beta, gathered = saved
    sent = Sent.of(beta, gathered, d_output)

    def visit(source: Array, key: Array, value: Array) -> Gradients:
        return gather_back(logits.meeting(key, source * key.shape[2]), value, sent, size)

    found = _around_and_home(axis, visit, logits, (logits.key, value))
    d_sinks, d_beta = gather_sinks_back(logits, sent)
    return found.of(logits, d_sinks), found.value.astype(value.dtype), d_beta + found.row


weighted.defvjp(_weighted_forward, _weighted_backward)


def _around(axis: str, visit: Callable[[Array, Any, Any], Any], state: Any, travelling: Any) -> Any:
    """Fold every device's `travelling` arrays into the state: `visit(source, state, travelling)`."""
    devices, here = lax.axis_size(axis), lax.axis_index(axis)

    def step(t: Array, both: tuple[Any, Any]) -> tuple[Any, Any]:
        state, travelling = both
        # Sent on before they are used, so that the exchange runs beside the products.
        following = _sent_on(travelling, axis)
        return visit((here - t) % devices, state, travelling), following

    state, _ = lax.fori_loop(0, devices, step, (state, travelling))
    return state


def _around_and_home(axis: str, visit: Callable[..., Gradients], logits: Logits, travelling: tuple) -> Gradients:
    """Add up the gradients of every meeting; those of what travels return to the device that it belongs to."""
    devices, here = lax.axis_size(axis), lax.axis_index(axis)
    wide = logits.wide
    zeros = partial(jax.tree.map, lambda array: jnp.zeros(array.shape, wide))

    def step(t: Array, carry: tuple) -> tuple:
        travelling, of_travelling, (d_query, d_bias, d_row) = carry
        source = (here - t) % devices
        following = _sent_on(travelling, axis)
        found = visit(source, *travelling)
        of_travelling = jax.tree.map(jnp.add, of_travelling, (found.key, found.value)[: len(travelling)])
        if d_bias is not None:
            start = source * travelling[0].shape[2] if d_bias.shape[3] > 1 else 0
            here_now = lax.dynamic_slice_in_dim(d_bias, start, found.bias.shape[3], axis=3)
            d_bias = lax.dynamic_update_slice_in_dim(d_bias, here_now + found.bias, start, axis=3)
        d_row = d_row if found.row is None else d_row + found.row
        return following, _sent_on(of_travelling, axis), (d_query + found.query, d_bias, d_row)

    stays = (zeros(logits.query), zeros(logits.bias), jnp.zeros(logits.rows, wide))
    _, of_travelling, (d_query, d_bias, d_row) = lax.fori_loop(0, devices, step, (travelling, zeros(travelling), stays))
    d_value = of_travelling[1] if len(of_travelling) > 1 else None
    return Gradients(d_query, of_travelling[0], d_bias, d_value, d_row)


def _sent_on(arrays: Any, axis: str) -> Any:
    """Give to the next device, take from the one before."""
    devices = lax.axis_size(axis)
    return lax.ppermute(arrays, axis, [(device, (device + 1) % devices) for device in range(devices)])
