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
from sharpmax.dispersion.measure import quantities

Rows = Callable[[int], Tensor]
"""Chooses which of a call's query rows to observe: number of queries -> their indices."""


class RowProbe:
    """Observes some rows of every layer, and keeps sums by length; what `sharpen(model, probe=…)` calls.

    `rows` says which rows, `length_of` under which length each of them counts.
    """

    def __init__(self, rows: Rows, length_of: Callable[[np.ndarray], np.ndarray | int]) -> None:
        self._rows, self._length_of = rows, length_of
        self._sums: dict[tuple[int, int], dict[str, np.ndarray]] = {}
        self._counts: dict[tuple[int, int], int] = {}
        self._keys: dict[tuple[int, int], int] = {}
        self._most: dict[int, np.ndarray] = {}

    @torch.no_grad()
    def __call__(self, layer: int, query: Tensor, key: Tensor, options: dict[str, Any]) -> None:
        """Measure the chosen rows of one call."""
        index = self._rows(query.shape[2])
        if not options.get("is_causal"):
            self._measure(layer, query, key, index, options)
            return
        # Rows of like reach together, each group on the keys that it reaches: on all keys short rows cost as long ones.
        reach = index + 1 + key.shape[2] - query.shape[2]
        doublings = reach.double().log2().ceil()
        for doubling in sorted(set(doublings.tolist())):
            here = doublings == doubling
            self._measure(layer, query, key[:, :, : int(reach[here].max())], index[here], options, reach[here])

    def _measure(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        index: Tensor,
        options: dict[str, Any],
        reach: Tensor | None = None,
    ) -> None:
        """Measure rows on keys; a row with a `reach` sees the first so many of them."""
        index, keys = index.to(query.device), key.shape[2]
        chosen: dict[str, Any] = {name: options.get(name) for name in ("scale", "softcap", "sinks")}
        mask, bias = (_part(options.get(name), index, keys) for name in ("mask", "bias"))
        if reach is not None:
            causal = reach.to(query.device)[:, None] > torch.arange(keys, device=query.device)
            mask = causal[None, None] if mask is None else mask & causal
        q = query[:, :, index]
        stats = sharpmax.torch.row_stats(q, key, extra=frozenset({"minimum"}), mask=mask, bias=bias, **chosen)
        alone: dict[str, Any] = {"mask": _first_key(mask), "bias": _first_key(bias), **chosen, "sinks": None}
        first = sharpmax.torch.row_stats(q, key[:, :, :1], **alone).logsumexp
        stats = type(stats)(*(None if field is None else field.cpu() for field in stats))
        # (batch, head, row): heads share their masks, so what the first head sees is what every head sees.
        count = np.asarray(stats.count)[:, 0]
        lengths = np.where(count > 0, self._length_of(index.cpu().numpy()), 0)
        self._add(layer, quantities(stats, first.cpu()), lengths, count)

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
        return Dispersion(lengths, values, most, rows, names, keys)


def _part(tensor: Tensor | None, index: Tensor, keys: int) -> Tensor | None:
    """Return the rows of a mask or bias, and its first keys; an axis of one stays as it is."""
    if tensor is None:
        return None
    rows = tensor if tensor.shape[-2] == 1 else tensor[..., index, :]
    return rows[..., :keys]


def _first_key(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor[..., :1]
