"""Statistics of chosen query rows of every attention call: O(rows · keys) beside the model's own attention.

A row's length is how much of the text lies behind it: in one pass over a long text every length is there, row i has
i + 1. A layer with a window sees less of it, and its row counts under the same length.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sharpmax.torch
from sharpmax.dispersion import QUANTITIES, Dispersion
from sharpmax.dispersion.crowd import ObservedRows, far_keys, gathered
from sharpmax.dispersion.measure import quantities

Rows = Callable[[int], Tensor]
"""Chooses which of a call's query rows to observe: number of queries -> their indices."""


class RowProbe:
    """Observes some rows of every layer, and keeps sums by length; what `sharpen(model, probe=…)` calls.

    `rows` says which rows, `length_of` under which length each of them counts. With `keep`, what a forecast needs of
    every single row is kept too.
    """

    def __init__(self, rows: Rows, length_of: Callable[[np.ndarray], np.ndarray | int], *, keep: bool = False) -> None:
        self._rows, self._length_of, self._keep = rows, length_of, keep
        self._kept: dict[tuple[int, int], list[ObservedRows]] = {}
        self._sums: dict[tuple[int, int], dict[str, np.ndarray]] = {}
        self._counts: dict[tuple[int, int], int] = {}
        self._keys: dict[tuple[int, int], int] = {}
        self._most: dict[int, np.ndarray] = {}

    @torch.no_grad()
    def __call__(self, layer: int, query: Tensor, key: Tensor, options: dict[str, Any]) -> None:
        """Measure the chosen rows of one call."""
        index = self._rows(query.shape[2])
        place = index + key.shape[2] - query.shape[2]  # among the keys: the last row stands at the last key
        if not options.get("is_causal"):
            self._measure(layer, query, key, index, options, place)
            return
        # Rows of like reach together, each group on the keys that it reaches: on all keys short rows cost as long ones.
        reach = place + 1
        doublings = reach.double().log2().ceil()
        for doubling in sorted(set(doublings.tolist())):
            here = doublings == doubling
            seen = key[:, :, : int(reach[here].max())]
            self._measure(layer, query, seen, index[here], options, place[here], reach[here])

    def _measure(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        index: Tensor,
        options: dict[str, Any],
        place: Tensor,
        reach: Tensor | None = None,
    ) -> None:
        """Measure rows on keys, among which each has its place; a row with a `reach` sees the first so many of them."""
        index, keys = index.to(query.device), key.shape[2]
        chosen: dict[str, Any] = {name: options.get(name) for name in ("scale", "softcap", "sinks")}
        mask, bias = (_part(options.get(name), index, keys) for name in ("mask", "bias"))
        if reach is not None:
            causal = reach.to(query.device)[:, None] > torch.arange(keys, device=query.device)
            mask = causal[None, None] if mask is None else mask & causal
        q = query[:, :, index]
        stats = sharpmax.torch.row_stats(q, key, extra=frozenset({"minimum"}), mask=mask, bias=bias, **chosen)
        if chosen["sinks"] is not None:  # in H and LSE alone: it is no token that a head could look at
            without: dict[str, Any] = {**chosen, "sinks": None, "extra": frozenset({"minimum"})}
            tokens = sharpmax.torch.row_stats(q, key, mask=mask, bias=bias, **without)
            stats = stats.amended(maximum=tokens.maximum, minimum=tokens.minimum)
        alone: dict[str, Any] = {"mask": _first_key(mask), "bias": _first_key(bias), **chosen, "sinks": None}
        first = sharpmax.torch.row_stats(q, key[:, :, :1], **alone).logsumexp
        stats = stats.mapped(Tensor.cpu)
        # (batch, head, row): heads share their masks, so what the first head sees is what every head sees.
        count = np.asarray(stats.count)[:, 0]
        lengths = np.where(count > 0, self._length_of(index.cpu().numpy()), 0)
        found = quantities(stats, first.cpu())
        self._add(layer, found, lengths, count)
        if self._keep:
            visible = _visible(mask, query.shape[0], index.numel(), key.shape[2])
            at = place.cpu().numpy()
            far = np.stack([far_keys(at, seen) for seen in visible])
            chosen |= {"mask": torch.from_numpy(far)[:, None].to(query.device), "bias": bias, "sinks": None}
            outer = sharpmax.torch.row_stats(q, key, **chosen)
            ahead = (visible & (np.arange(key.shape[2]) > at[:, None])).sum(-1) / np.maximum(count, 1)
            per_far_key = np.where(visible[..., 0] & far.any(-1), count / np.maximum(far.sum(-1), 1), 0.0)
            self._observe(layer, found, stats, outer, lengths, per_far_key, ahead)

    def _add(self, layer: int, found: dict[str, np.ndarray], lengths: np.ndarray, count: np.ndarray) -> None:
        heads = found["spread"].shape[1]
        most = np.nanmax(found["spread"], axis=(0, 2))
        self._most[layer] = np.fmax(self._most.get(layer, np.full(heads, -np.inf)), most)
        for length in map(int, np.unique(lengths[lengths > 0])):
            here = lengths == length
            slot = self._sums.setdefault((layer, length), {name: np.zeros(heads) for name in QUANTITIES})
            for name in QUANTITIES:
                slot[name] += found[name].transpose(0, 2, 1)[here].sum(axis=0)
            self._counts[layer, length] = self._counts.get((layer, length), 0) + int(here.sum())
            self._keys[layer, length] = min(self._keys.get((layer, length), sys.maxsize), int(count[here].min()))

    def _observe(
        self, layer: int, found: dict[str, np.ndarray], stats: Any, far: Any, lengths: np.ndarray,
        per_far_key: np.ndarray, ahead: np.ndarray,
    ) -> None:  # fmt: skip
        """Keep single rows; one that does not see the first key is in a window, which no longer input widens."""
        weight = np.exp(np.asarray(far.logsumexp.cpu() - stats.logsumexp, dtype=np.float64))
        values = (found["entropy"], found["largest_weight"], weight, np.asarray(far.entropy.cpu(), dtype=np.float64))
        for length in map(int, np.unique(lengths[lengths > 0])):
            here = lengths == length
            picked = [value.transpose(1, 0, 2)[:, here] for value in values]  # (head, row)
            picked += [np.broadcast_to(of_row[here], picked[0].shape) for of_row in (per_far_key, ahead)]
            self._kept.setdefault((layer, length), []).append(ObservedRows(*picked))

    def _observed(self, lengths: list[int], layers: int, heads: int) -> dict[int, ObservedRows] | None:
        """Return the kept rows by length, (layer, head, row); NaN for a layer or head without them."""
        if not self._keep:
            return None
        observed = {}
        for length in lengths:
            by_layer = {layer: gathered(parts) for (layer, of), parts in self._kept.items() if of == length}
            rows = max(part.entropy.shape[-1] for part in by_layer.values())
            blank = np.full((6, layers, heads, rows), np.nan)
            for layer, part in by_layer.items():
                for target, values in zip(blank, vars(part).values(), strict=True):
                    target[layer, : values.shape[0], : values.shape[1]] = values
            observed[length] = ObservedRows(*blank)
        return observed

    def dispersion(self, names: list[str]) -> Dispersion:
        """Return the means of everything observed; heads that a layer does not have are NaN."""
        lengths = sorted({length for _, length in self._sums})
        if not lengths:
            raise ValueError("no row was observed: the inputs are shorter than every length asked for")
        layers, heads = max(self._most) + 1, max(most.size for most in self._most.values())
        values = {name: np.full((layers, heads, len(lengths)), np.nan) for name in QUANTITIES}
        most = np.full((layers, heads), np.nan)
        for layer, spread in self._most.items():
            most[layer, : spread.size] = spread
        for (layer, length), sums in self._sums.items():
            for name, total in sums.items():
                values[name][layer, : total.size, lengths.index(length)] = total / self._counts[layer, length]
        keys = np.full((layers, len(lengths)), np.nan)
        for (layer, length), fewest in self._keys.items():
            keys[layer, lengths.index(length)] = fewest
        rows = [max(self._counts.get((layer, length), 0) for layer in range(layers)) for length in lengths]
        return Dispersion(lengths, values, most, rows, names, keys, self._observed(lengths, layers, heads))


def _part(tensor: Tensor | None, index: Tensor, keys: int) -> Tensor | None:
    """Return the rows of a mask or bias, and its first keys; an axis of one stays as it is."""
    if tensor is None:
        return None
    rows = tensor if tensor.shape[-2] == 1 else tensor[..., index, :]
    return rows[..., :keys]


def _visible(mask: Tensor | None, batch: int, rows: int, keys: int) -> np.ndarray:
    """Return what each row sees, (batch, row, key); heads share their masks."""
    if mask is None:
        return np.ones((batch, rows, keys), dtype=bool)
    return np.broadcast_to(mask[:, 0].cpu().numpy(), (batch, rows, keys))


def _first_key(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor[..., :1]
