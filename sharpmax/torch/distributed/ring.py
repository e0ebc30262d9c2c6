"""Keys travel round the processes, queries stay: the two passes of attention as autograd functions.

In n steps every process's keys visit every other, from neighbour to neighbour; the exchange of the next visitor runs
beside the work on the present one. Backward goes round once more, and the gradients of the keys travel with them until
they are home. (Ring attention, Liu et al., arXiv 2310.01889, carried to the row statistics.)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sharpmax.core.stats import RowStats
from sharpmax.torch.distributed.rows import (
    Gathered,
    Rows,
    Seen,
    divisor,
    send_back,
    shifted,
    statistics_gradient,
)


@dataclass(frozen=True)
class Ring:
    """The processes that share the sequence, and how many keys each one holds."""

    group: Any
    lengths: tuple[int, ...]

    @property
    def here(self) -> int:
        """This process's place."""
        return int(dist.get_rank(self.group))

    def start(self, source: int) -> int:
        """Index of the first key of a process among all keys."""
        return sum(self.lengths[:source])

    def visits(self, *own: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        """Yield (source, its tensors (B, Hkv, keys, …)) for every process, this one first."""
        present, source = own, self.here
        for step in range(len(self.lengths)):
            last = step == len(self.lengths) - 1
            following, work = (present, []) if last else self._exchange(present, self._before(source))
            yield source, present
            for waiting in work:
                waiting.wait()
            present, source = following, self._before(source)

    def passed_on(self, tensors: tuple[Tensor, ...], source: int) -> tuple[Tensor, ...]:
        """Give what belongs to `source` to the next process, and take what comes from the one before."""
        received, work = self._exchange(tensors, self._before(source))
        for waiting in work:
            waiting.wait()
        return received

    def _before(self, process: int) -> int:
        return (process - 1) % len(self.lengths)

    def _exchange(self, tensors: tuple[Tensor, ...], source: int) -> tuple[tuple[Tensor, ...], list[Any]]:
        """Start sending the tensors on, and receiving those of `source`."""
        count = len(self.lengths)
        if count == 1:
            return tensors, []
        ranks = [dist.get_global_rank(self.group, i) for i in ((self.here + 1) % count, self._before(self.here))]
        received = tuple(t.new_empty((*t.shape[:2], self.lengths[source], *t.shape[3:])) for t in tensors)
        operations = [dist.P2POp(dist.isend, t.contiguous(), ranks[0], self.group) for t in tensors]
        operations += [dist.P2POp(dist.irecv, t, ranks[1], self.group) for t in received]
        return received, list(dist.batch_isend_irecv(operations))


class Statistics(torch.autograd.Function):
    """(entropy, logsumexp, maximum, count, minimum, variance) of this process's rows over all keys."""

    @staticmethod
    def forward(ctx: Any, rows: Rows, ring: Ring, extra: frozenset[str], *inputs: Any) -> Any:
        """Inputs are query, key, bias and sinks."""
        _, key, _, sinks = inputs
        seen: Seen | None = None
        for source, (k,) in ring.visits(key):
            parts = [Seen.of(_logits(rows, part, ring, source, k), extra) for part in rows.parts(k.shape[2])]
            seen = Seen.joined(parts) if seen is None else seen.merge(Seen.joined(parts))
        assert seen is not None
        count = seen.state.count
        if sinks is not None:
            seen = seen.merge(Seen.of(_sink_column(sinks, count, rows.wide), extra))
        stats = seen.state.stats().amended(count=count)
        ctx.rows, ctx.ring = rows, ring
        # The mask is saved too, for autograd to notice a change made to it in place.
        ctx.save_for_backward(rows.mask, *inputs, *seen[1:], *stats[:6])
        ctx.mark_non_differentiable(count)
        return stats[:6]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Go round once more."""
        _refuse_a_second_derivative()
        _, query, key, bias, sinks, at_maximum, at_minimum, *kept = ctx.saved_tensors
        rows, ring = ctx.rows, ctx.ring

        def of(part: slice, fields: Any) -> Any:
            return [None if field is None else field[:, :, part, None] for field in fields]

        def rule(e: Tensor, part: slice) -> Tensor:
            ties = of(part, (at_maximum, at_minimum))
            return statistics_gradient(e, RowStats(*of(part, kept)), ties, RowStats(*of(part, gradients)))

        def meet(k: Tensor, start: int) -> Any:
            return (*send_back(rows, k, start, rule), None)

        d_query, (d_key,), d_bias = _around_and_home(rows, ring, (key,), meet)
        d_sinks = None
        if sinks is not None:
            count = kept[RowStats._fields.index("count")]
            d_sinks = rule(_sink_column(sinks, count, rows.wide), slice(None)).sum((0, 2, 3)).to(sinks.dtype)
        return None, None, None, d_query.to(query.dtype), d_key.to(key.dtype), _cast(d_bias, bias), d_sinks


class Weighted(torch.autograd.Function):
    """softmax(beta·e)·v of this process's rows over all keys."""

    @staticmethod
    def forward(ctx: Any, rows: Rows, ring: Ring, beta: Tensor, *inputs: Any) -> Tensor:
        """Inputs are query, key, value, bias and sinks."""
        query, key, value, _, sinks = inputs
        gathered: Gathered | None = None
        for source, (k, v) in ring.visits(key, value):
            parts = [
                Gathered.of(_logits(rows, part, ring, source, k), beta[:, :, part], v)
                for part in rows.parts(k.shape[2])
            ]
            joined = Gathered(*(torch.cat(fields, dim=2) for fields in zip(*parts, strict=True)))
            gathered = joined if gathered is None else gathered.merge(joined, beta)
        assert gathered is not None
        if sinks is not None:
            sink = _sink_column(sinks, gathered.Z, rows.wide)[..., 0]
            alone = Gathered(sink, (sink != -torch.inf).to(sink.dtype), torch.zeros_like(gathered.O))
            gathered = gathered.merge(alone, beta)
        ctx.rows, ctx.ring = rows, ring
        ctx.save_for_backward(rows.mask, beta, *inputs, gathered.maximum, gathered.Z, gathered.output)
        return gathered.output.to(query.dtype)

    @staticmethod
    def backward(ctx: Any, gradient_output: Tensor) -> Any:
        """Go round once more."""
        _refuse_a_second_derivative()
        _, beta, query, key, value, bias, sinks, maximum, Z, output = ctx.saved_tensors
        rows, ring = ctx.rows, ctx.ring
        d_out = gradient_output.to(rows.wide)
        delta = (d_out * output).sum(-1, keepdim=True)
        d_beta = torch.zeros_like(beta)

        def meet(k: Tensor, start: int, v: Tensor) -> Any:
            d_value = torch.zeros(v.shape, dtype=rows.wide, device=v.device)

            def rule(e: Tensor, part: slice) -> Tensor:
                row_beta, dO = beta[:, :, part, None], d_out[:, :, part]
                moved = shifted(e, maximum[:, :, part])
                w = torch.exp(row_beta * moved) / divisor(Z)[:, :, part, None]
                by_head = (v.shape[0], v.shape[1], -1)
                grouped = dO.reshape(*by_head, dO.shape[3])
                d_value.add_(w.reshape(*by_head, w.shape[3]).mT @ grouped)
                g = (grouped @ v.to(rows.wide).mT).reshape(e.shape)
                d_scaled = torch.where(w > 0, w * (g - delta[:, :, part]), 0)  # an unseen value may be NaN
                # Σ dS_j = 0, so the shift of e does not change Σ e_j dS_j, and keeps its rounding small.
                d_beta[:, :, part] += (moved * d_scaled).sum(-1)
                gradient: Tensor = row_beta * d_scaled
                return gradient

            return (*send_back(rows, k, start, rule), d_value)

        d_query, (d_key, d_value), d_bias = _around_and_home(rows, ring, (key, value), meet)
        d_sinks = None
        if sinks is not None:  # its value is 0, hence its g
            moved = shifted(_sink_column(sinks, Z, rows.wide), maximum)
            d_scaled = torch.exp(beta[..., None] * moved) / divisor(Z)[..., None] * -delta
            d_beta += (moved * d_scaled)[..., 0]
            d_sinks = (beta[..., None] * d_scaled).sum((0, 2, 3)).to(sinks.dtype)
        of_keys = (d_key.to(key.dtype), d_value.to(value.dtype))
        return None, None, d_beta, d_query.to(query.dtype), *of_keys, _cast(d_bias, bias), d_sinks


def _refuse_a_second_derivative() -> None:
    """Raise where autograd is to differentiate this gradient in turn: it would take most of it for a constant."""
    if torch.is_grad_enabled():
        raise NotImplementedError("context_parallel_attention has one derivative, and create_graph=True asks for more")


def _around_and_home(rows: Rows, ring: Ring, own: tuple[Tensor, ...], meet: Any) -> Any:
    """Add up the gradients of every meeting; those of what travels end on the process that it belongs to."""
    d_query = torch.zeros(rows.query.shape, dtype=rows.wide, device=rows.query.device)
    d_bias = None if rows.bias is None else torch.zeros(rows.bias.shape, dtype=rows.wide, device=rows.bias.device)
    of_visitor = tuple(torch.zeros(t.shape, dtype=rows.wide, device=t.device) for t in own)
    for source, (k, *rest) in ring.visits(*own):
        start = ring.start(source)
        q_part, k_part, bias_part, v_part = meet(k, start, *rest)
        d_query += q_part
        if d_bias is not None:
            columns = slice(None) if d_bias.shape[3] == 1 else slice(start, start + k.shape[2])
            d_bias[..., columns] += bias_part
        found = (k_part, v_part)[: len(own)]
        of_visitor = ring.passed_on(tuple(a + b for a, b in zip(of_visitor, found, strict=True)), source)
    return d_query, of_visitor, d_bias


def _logits(rows: Rows, part: slice, ring: Ring, source: int, key: Tensor) -> Tensor:
    start = ring.start(source)
    return rows.logits(part, rows.query[:, :, part], key, rows.pairs(rows.bias, part, start, key.shape[2]), start)


def _sink_column(sinks: Tensor, seen: Tensor, wide: torch.dtype) -> Tensor:
    """Return each row's sink logit (B, H, Lq, 1), masked in rows that see no key."""
    sink = sinks.to(wide)[None, :, None].expand(seen.shape)
    return torch.where(seen > 0, sink, -torch.inf)[..., None]


def _cast(gradient: Tensor | None, target: Tensor | None) -> Tensor | None:
    return None if gradient is None or target is None else gradient.to(target.dtype)
