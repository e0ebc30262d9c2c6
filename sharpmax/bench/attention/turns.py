"""Check each contestant of a case, time those that passed in turns, and relate them to plain attention.

Plain attention is the fastest of PyTorch's own kernels on the same tensors. Two ratios are reported:

    ratio        device time over device time; the host's launch time is hidden behind a busy device
    wall_ratio   wall time of a call over wall time of a call, host included
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sharpmax.bench.attention.contestants import Contestant, Setting
from sharpmax.bench.attention.judging import error_of
from sharpmax.bench.attention.profile import profiled
from sharpmax.bench.attention.timing import RATIOS, attempt, timed
from sharpmax.torch import which_implementation

Rows = list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Entry:
    """A contestant in a case, with the tensors it gets; a `gradient` of the output makes it forward + backward."""

    case: str
    contestant: Contestant
    tensors: Any
    gradient: Any = None

    @property
    def is_plain(self) -> bool:
        """Whether it is one of those that ratios are to."""
        return self.case.startswith("plain")

    def call(self, setting: Setting) -> Callable[[], Any]:
        """Return the call to time: the output, or the gradients of query, key and value."""
        call = self.contestant.build(setting)
        if self.gradient is None:
            return lambda: call(*self.tensors)
        return lambda: torch.autograd.grad(call(*self.tensors), self.tensors, self.gradient)

    def check(self, setting: Setting, result: Any) -> dict[str, Any]:
        """Return the error of a result, and which implementation ran where none was named.

        Raises:
            ArithmeticError: the result is wrong.
        """
        found: dict[str, Any] = {}
        contestant, kind = self.contestant, self.contestant.kind
        if not contestant.name:
            # Statistics alone are asked for as `row_stats` asks for them.
            how = {**setting.changes, "is_causal": setting.is_causal}
            how["return_stats"] = kind == "entropy" or contestant.returns_stats
            if contestant.policy is not None:
                how["policy"] = contestant.policy
            found["implementation"] = which_implementation(*self.tensors, **how).implementation
        options = {"is_causal": setting.is_causal, **setting.changes_of(kind)}
        own = contestant.policy if kind == "policy" else None
        judged = {kind: result if self.gradient is None else result[0]}
        if contestant.returns_stats and self.gradient is None:
            judged = {kind: result[0], "entropy": result[1].entropy.unsqueeze(-1)}
        errors = [
            error_of(kind, x, self.tensors, gradient=self.gradient, policy=own, **options) for kind, x in judged.items()
        ]
        return found | {"error": max(errors)}

    def row(self, setting: Setting) -> dict[str, Any]:
        """Return what names the entry in the table."""
        sizes = {"length": setting.keys, "width": self.tensors[0].shape[3]}
        return {"case": self.case, **sizes, "implementation": self.contestant.name}


def in_turns(entries: Sequence[Entry], setting: Setting, repeats: int) -> Rows:
    """Check each entry, time those that passed in turns, and return a row for each."""
    rows: Rows = []
    calls: dict[str, Callable[[], Any]] = {}
    with torch.set_grad_enabled(any(e.gradient is not None for e in entries)):
        for i, entry in enumerate(entries):

            def enter(entry: Entry = entry, key: str = str(i)) -> dict[str, Any]:
                calls[key] = entry.call(setting)
                return entry.check(setting, calls[key]())

            rows.append(entry.row(setting) | attempt(enter))
            if "failed" in rows[i]:
                calls.pop(str(i), None)
        for key, found in timed(calls, device=setting.device, repeats=repeats).items():
            rows[int(key)] |= found
    for entry, row in zip(entries, rows, strict=True):
        for ratio, time in RATIOS.items():
            plain = [
                r[time] for e, r in zip(entries, rows, strict=True)
                if e.is_plain and e.tensors is entry.tensors and time in r
            ]  # fmt: skip
            if plain and time in row:
                row[ratio] = row[time] / min(plain)
    return rows


def profile_each(entries: Sequence[Entry], setting: Setting) -> Rows:
    """Return where the time of each case goes; of plain attention by the first kernel alone."""
    rows = []
    for i, entry in enumerate(entries):
        if entry.is_plain and i > 0:
            continue

        def look(entry: Entry = entry) -> dict[str, Any]:
            return {"microseconds": profiled(entry.call(setting), setting.device)}

        with torch.no_grad():
            row = entry.row(setting) | attempt(look)
        rows.append(row | {"implementation": entry.contestant.name or "ours"})
    return rows
