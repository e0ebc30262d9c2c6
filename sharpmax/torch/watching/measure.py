"""Measure the rows of one attention call, beside the graph: the model computes the same with and without.

Under torch.compile it is one operator, which the compiler neither looks into nor moves. Whether a call is one of
gradient checkpointing's own, in the backward pass, is asked when it runs: such a call counts nothing.
"""

from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from sharpmax.core.masks import Window, window_ends
from sharpmax.core.policies import Constant
from sharpmax.core.stats import RowStats
from sharpmax.torch.api import row_stats, which_implementation
from sharpmax.torch.dispatch import ABSENT
from sharpmax.torch.documents import Documents
from sharpmax.torch.request import under_autocast
from sharpmax.torch.torch_internals import recomputing
from sharpmax.torch.tracing import device_of
from sharpmax.torch.triton.availability import interpreted
from sharpmax.torch.varlen import attention_varlen, packed_request, packed_statistics
from sharpmax.torch.watching.counters import Counters

DENSE = 2**20  # logits of a call, up to which dense statistics take a CPU less time than streaming ones
if ABSENT is None:
    from sharpmax.torch.triton.counting import count_rows
    from sharpmax.torch.triton.row_outputs import new_row_outputs
    from sharpmax.torch.triton.statistics import launch_statistics

PLAIN = Constant(1.0)  # one object, by which dispatch remembers its plans
OF_LOGITS = ("mask", "bias", "sinks", "is_causal", "scale", "window", "softcap")


class Gauge:
    """The counters of a model's layers, made when a layer first attends, and whether they count."""

    def __init__(self, implementation: str | None = None, device: torch.device | None = None) -> None:
        self.measuring, self.implementation = True, implementation
        self._token = torch.zeros(1, device=device)  # what the operator pretends to write to, so that it is kept
        self.layers: dict[int, Counters] = {}
        self._by_kernel: set[tuple[Any, ...]] = set()
        """The kinds of call whose statistics are one launch of ours."""
        self.calls = 0  # made outside of compiled graphs, since someone last set it to 0
        self.in_graph = False  # whether a compiled graph calls it, which may be replayed without a word
        _gauges[id(self)] = self

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        """Leave the gauge behind: a copy of a watched model, or one that is saved, is not watched."""
        return _nothing, ()

    @property
    def counts(self) -> bool:
        """Whether a call that is made now is counted."""
        return self.measuring

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, *, documents: Documents | None = None,
        cumulative: Tensor | None = None, **options: Any,
    ) -> None:  # fmt: skip
        """Count the rows of a call, (B, H, Lq, D) on (B, Hkv, Lk, D), with the options of `attention`.

        A row of packed documents comes with `documents`, or with their `cumulative` lengths.
        """
        of = {name: options.get(name) for name in OF_LOGITS} | {"is_causal": bool(options.get("is_causal"))}
        if not torch.compiler.is_compiling():
            self.calls += 1
            self.measure(layer, query, key, documents, cumulative, of)
            return
        left, right = window_ends(of["window"]) or (None, None)
        cumulative = cumulative if documents is None else documents.cumulative
        torch.ops.sharpmax.watch_rows(
            self._token, query.detach(), key.detach(), of["mask"], of["bias"], of["sinks"], cumulative,
            of["is_causal"], of["scale"], left, right, of["softcap"], id(self), layer,
        )  # fmt: skip

    @torch.no_grad()
    def measure(
        self, layer: int, query: Tensor, key: Tensor, documents: Documents | None, cumulative: Tensor | None,
        options: dict[str, Any],
    ) -> None:  # fmt: skip
        """Count the rows of a call now, unless it is one of gradient checkpointing's own."""
        if recomputing():
            return
        query, key = under_autocast(query.detach(), key.detach())
        if documents is None and cumulative is not None:
            documents = _documents_within(cumulative.to(query.device), query.shape[2])
        documents = None if documents is None else documents.on(query.device)
        starts = None if documents is None else documents.starts
        stats = self._stats(query, key, documents, options)
        if options["sinks"] is not None:  # no clip of queries and keys reaches a sink: in H and LSE alone
            keys = self._stats(query, key, documents, {**options, "sinks": None})
            stats = stats.amended(maximum=keys.maximum)
        counters = self.layers.get(layer)
        if counters is None:
            counters = self.layers[layer] = Counters.new(query.shape[1], query.device, stats.maximum.dtype)
        if self._in_one_launch(query, key, options):
            scale = query.shape[3] ** -0.5 if options["scale"] is None else options["scale"]
            with device_of((query,)):
                count_rows(
                    query, key, stats, starts, counters.maximum, counters.sums, counters.bins, scale=scale,
                    is_causal=options["is_causal"],
                )  # fmt: skip
        elif starts is None:
            counters.add(stats, _first_share(query, key, stats.logsumexp, options))
        else:
            share = _share(query, key[:, :, starts.long()], stats.logsumexp, options)
            behind = torch.arange(query.shape[2], device=query.device) - starts
            counters.add(stats, torch.where(_seen(behind, options["window"], options["is_causal"]), share, 0))

    def _stats(self, query: Tensor, key: Tensor, documents: Documents | None, options: dict[str, Any]) -> RowStats:
        """Return the statistics of the rows: past every check, where a call of this kind went by our kernel before."""
        is_causal, scale = options["is_causal"], options["scale"]
        kind = (query.shape, key.shape, query.dtype, query.device, documents is None, is_causal, scale)
        in_one_launch = self.implementation is None and query.is_cuda and self._in_one_launch(query, key, options)
        if in_one_launch and kind in self._by_kernel and query.stride(3) == key.stride(3) == 1:
            rows = new_row_outputs(query, "entropy", "logsumexp", "maximum")
            with device_of((query,)):
                launch_statistics(
                    query, key, rows, scale=query.shape[3] ** -0.5 if scale is None else scale, left=None,
                    right=0 if is_causal else None, starts=None if documents is None else documents.starts,
                )  # fmt: skip
            return RowStats(entropy=rows.entropy, logsumexp=rows.logsumexp, maximum=rows.maximum)
        if documents is not None:
            stats, by_kernel = _packed_stats(query, key, documents, options)
        else:
            name = self.implementation or _named(query, key)
            stats, by_kernel = row_stats(query, key, implementation=name, **options), False
            if in_one_launch:
                plan = which_implementation(query, key, key, policy=PLAIN, return_stats=True, **options)
                by_kernel = plan.implementation in ("hybrid", "triton")
        if in_one_launch and by_kernel:
            self._by_kernel.add(kind)
        return stats

    def _in_one_launch(self, query: Tensor, key: Tensor, options: dict[str, Any]) -> bool:
        """Tell whether our kernel counts these rows: it knows bare logits, in float32 at most."""
        if ABSENT is not None or query.dtype == torch.float64 or not (query.is_cuda or self._is_interpreted()):
            return False
        return all(options[name] is None for name in ("mask", "bias", "sinks", "window", "softcap"))

    def _is_interpreted(self) -> bool:
        """Tell whether Triton's interpreter was asked for by the name of one of its implementations."""
        return interpreted() and self.implementation in ("triton", "hybrid")


def _nothing() -> None:
    """Return what stands in a copy where a gauge was."""


_gauges: WeakValueDictionary[int, Gauge] = WeakValueDictionary()
"""The gauges there are, by the number that a compiled graph knows one by."""


@torch.library.custom_op("sharpmax::watch_rows", mutates_args=("token",))
def _watch_rows(
    token: Tensor, query: Tensor, key: Tensor, mask: Tensor | None, bias: Tensor | None, sinks: Tensor | None,
    cumulative: Tensor | None, is_causal: bool, scale: float | None, left: int | None, right: int | None,
    softcap: float | None, gauge: int, layer: int,
) -> None:  # fmt: skip
    """Count the rows of a call in the gauge of this number."""
    options = {
        "mask": mask, "bias": bias, "sinks": sinks, "is_causal": is_causal, "scale": scale,
        "window": None if left is None or right is None else (left, right), "softcap": softcap,
    }  # fmt: skip
    _gauges[gauge].in_graph = True
    _gauges[gauge].measure(layer, query, key, None, cumulative, options)


def _named(query: Tensor, key: Tensor) -> str | None:
    """Return the implementation to name: on a CPU few logits are computed fastest all at once."""
    return "eager" if query.device.type == "cpu" and query[..., 0].numel() * key.shape[2] <= DENSE else None


def _documents_within(cumulative: Tensor, items: int) -> Documents:
    item = torch.arange(items, device=cumulative.device, dtype=cumulative.dtype)
    which = torch.searchsorted(cumulative, item, right=True)
    starts, ends = cumulative[which - 1], cumulative[which]
    return Documents(cumulative.int(), starts.int(), ends.int(), longest=items)


def _packed_stats(
    query: Tensor, key: Tensor, documents: Documents, options: dict[str, Any]
) -> tuple[RowStats, bool]:  # fmt: skip
    """Return the statistics of a row of packed documents, (1, H, T), and whether one call of our kernels took it."""
    plain = {**{name: option for name, option in options.items() if option is not None}, "policy": PLAIN}
    request = packed_request(query, key, key, documents, return_stats=True, **plain)
    if request is not None:
        return packed_statistics(request), True
    each = {name: option for name, option in plain.items() if name not in ("mask", "bias")}
    _, rows = attention_varlen(query[0], key[0], key[0], documents.cumulative, return_stats=True, **each)
    return rows.mapped(lambda field: field[None]), False


def _first_share(query: Tensor, key: Tensor, logsumexp: Tensor, options: dict[str, Any]) -> Tensor:
    """Return the weight of the first key that any row of its sequence sees; 0 for the rows that do not see it."""
    mask, bias = options["mask"], options["bias"]
    mask = None if mask is None else mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
    bias = None if bias is None else bias.reshape((1,) * (4 - bias.ndim) + tuple(bias.shape))
    if mask is None or mask.shape[3] == 1:
        index = torch.zeros(query.shape[0], dtype=torch.long, device=query.device)
    else:
        index = mask.any(1).any(1).int().argmax(-1).expand(query.shape[0])
    chosen = index.view(-1, 1, 1, 1)
    first = key.take_along_dim(chosen, dim=2)
    share = _share(query, first, logsumexp, {**options, "bias": _column(bias, chosen)})
    behind = torch.arange(query.shape[2], device=query.device) + key.shape[2] - query.shape[2] - index[:, None]
    seen = _seen(behind, options["window"], bool(options["is_causal"]))[:, None]
    column = _column(mask, chosen)
    return torch.where(seen if column is None else seen & column.squeeze(-1), share, 0)


def _column(tensor: Tensor | None, index: Tensor) -> Tensor | None:
    """Return the chosen key's column of what broadcasts to the logits, (…, Lq, 1)."""
    if tensor is None or tensor.shape[3] == 1:
        return tensor
    return tensor.expand(len(index), *tensor.shape[1:]).take_along_dim(index, dim=3)


def _seen(behind: Tensor, window: Window, is_causal: bool) -> Tensor:
    left, right = window_ends(window) or (None, None)
    seen = torch.ones_like(behind, dtype=torch.bool)
    if left is not None:
        seen = seen & (behind <= left)
    right = 0 if is_causal else right
    return seen if right is None else seen & (behind >= -right)


def _share(query: Tensor, key: Tensor, logsumexp: Tensor, options: dict[str, Any]) -> Tensor:
    """Return the weight of one key per row: query (B, H, L, D), key (B, Hkv, 1 or L, D)."""
    wide = logsumexp.dtype
    scale = query.shape[3] ** -0.5 if options["scale"] is None else options["scale"]
    grouped = query.view(query.shape[0], key.shape[1], -1, *query.shape[2:]).to(wide)
    logit = (grouped * key.unsqueeze(2).to(wide)).sum(-1).flatten(1, 2) * scale
    if options["softcap"] is not None:
        logit = options["softcap"] * torch.tanh(logit / options["softcap"])
    if options["bias"] is not None:
        logit = logit + options["bias"].squeeze(-1).to(wide)
    return torch.where(logsumexp.isfinite(), (logit - logsumexp).exp(), 0)
