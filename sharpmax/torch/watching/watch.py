"""Watch the attention of a model while it trains: every head's maximum logit, entropy, logsumexp and first key.

    watch = sharpmax.torch.watch(model, every=10, record="runs/mine")
    for batch in batches:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        watch.step(loss=loss)

Statistics are gathered on the device, and nothing waits for it: `step` sends a copy on its way, and reads it when it
has come, one step later or more. `read` waits. Steps that are not watched attend as the plain model does.
"""

import sys
import warnings
from collections import deque
from collections.abc import Callable
from importlib import import_module
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from sharpmax.core.checks import is_count, short
from sharpmax.runs.watched import LAST_STEP, Reading, Record
from sharpmax.torch.watching.counters import Counters, joined
from sharpmax.torch.watching.guard import AttentionStoppedError, AttentionWarning, Guard
from sharpmax.torch.watching.measure import Gauge
from sharpmax.torch.watching.slot import Watchable

ROUTES = "sharpmax.hf.watching.route"
"""What reaches the attention of transformers' models; imported by name, because it stands above this folder."""


class Layer(NamedTuple):
    """One attention module: its name, itself, and the indices of the layers that it runs as."""

    name: str
    module: nn.Module
    indices: range


class Route(Protocol):
    """How a model's attention is reached."""

    layers: list[Layer]

    def close(self) -> None:
        """Leave the model as it was."""


class Snapshot(NamedTuple):
    """The counters of one step, on their way to the host."""

    step: int
    heads: tuple[int, ...]
    tensors: list[Tensor]
    come: Any  # the event of its coming; None: it is here


def watch(
    model: nn.Module,
    *,
    every: int = 1,
    record: str | Path | None = None,
    step: int | None = None,
    guard: Guard | None = None,
    group: "dist.ProcessGroup | None" = None,
    in_evaluation: bool = False,
) -> "Watch":
    """Watch every attention head of a model until `close()`; or use it as a block.

    Args:
        model: any transformers model (bare, under DDP or FSDP2, compiled), or a module with `nn.MultiheadAttention`,
            `sharpmax.hf.Attention` or `sharpmax.torch.WatchedAttention` inside. A sharpened model keeps its policy, and
            the statistics are of its rows before sharpening.
        every: watch one training step of so many; the others cost nothing.
        record: a folder or a `.jsonl` file that gets a line per watched step, for `sharpmax monitor`.
        step: the training step to begin at. None: the one after the last that the record holds, else 0.
        guard: warns, or stops the run, when a head collapses, explodes or its logits grow too large.
        group: the processes whose rows are counted together; all of them unless given. Under tensor or pipeline
            parallelism, give the data-parallel group: its processes hold the same heads.
        in_evaluation: count rows of `model.eval()` too.

    Raises:
        NotImplementedError: the model attends in a way that cannot be reached, or by `WatchedAttention` and otherwise.
        TypeError: a model that is no module, a record that is no path, a guard that is no `Guard`, a group that is no
            process group.
        ValueError: `every` below 1, a step below 0, or a record of another model.

    >>> layer = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> with watch(layer) as watched:     # doctest: +SKIP
    ...     _ = layer(x, x, x)
    ...     print(watched.read().maximum)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch module, got {type(model).__name__}")
    if not is_count(every, least=1):
        raise ValueError(f"expected to watch every 1 step or more, got {every!r}")
    if step is not None and not (is_count(step) and step < LAST_STEP):
        raise ValueError(f"expected to begin at step 0 or later, and before 2^53, got {step!r}")
    if record is not None and not isinstance(record, str | PathLike):
        raise TypeError(f"expected record to be the path of a folder or a .jsonl file, got {record!r}")
    if guard is not None and not isinstance(guard, Guard):
        raise TypeError(f"expected guard to be a Guard(…), got {guard!r}")
    if group is not None and not (dist.is_available() and isinstance(group, dist.ProcessGroup)):
        raise TypeError(f"expected group to be a process group, got {short(group)}")
    if not isinstance(in_evaluation, bool):
        raise TypeError(f"expected in_evaluation to be True or False, got {short(in_evaluation)}")
    return Watch(model, every, record, step, guard, group, in_evaluation)


class Watch:
    """A model that is watched; made by `watch`."""

    def __init__(
        self, model: nn.Module, every: int, record: str | Path | None, step: int | None, guard: Guard | None,
        group: "dist.ProcessGroup | None", in_evaluation: bool,
    ) -> None:  # fmt: skip
        self.model, self.every = model, every
        self.guard = None if guard is None else guard.for_run()
        self._group, self._in_evaluation = group, in_evaluation
        self._record = None if record is None or _rank(group) != 0 else Record(record, step=step)
        first = step or 0 if self._record is None else self._record.next_step()
        self.current_step = _agreed(first, group) if record is not None and step is None else first
        self.latest: Reading | None = None
        """The last reading that has come; `step` does not wait for one."""
        self.latest_step: int | None = None
        self.listeners: list[Callable[[int, Reading], None]] = []
        """Called with a step and its reading, when it has come."""
        self._losses: dict[int, Any] = {}
        self._sent: deque[Snapshot] = deque()
        self._stop: AttentionStoppedError | None = None
        self._said = False
        self.gauge = _TrainingGauge(model, in_evaluation)
        self._route: Route | None = _route(model, self.gauge)
        self.layers = self._route.layers
        self._choose()

    def step(self, *, loss: Any = None) -> None:
        """End a training step; one that was watched is read as soon as it has come from the device.

        Every process calls it. `loss`, a number or a tensor, is kept in the record.

        Raises:
            AttentionStoppedError: a guard that stops the run has found a head at fault.
            RuntimeError: the watch was closed.
        """
        check_loss(loss)
        self.end_step(self.take() if self.gauge.measuring else None, loss=loss)

    def take(self) -> Counters | None:
        """Return the counters of the step, of all processes, on the device, and begin new ones; None: no rows."""
        self._must_be_on()
        if not self.gauge.layers:
            return None
        found = joined(self._counters())
        for counters in self.gauge.layers.values():
            counters.reset()
        if _is_distributed():
            found.reduce(self._group)
        return found

    def end_step(self, found: Counters | None, *, loss: Any = None, scaled: Tensor | None = None) -> None:
        """End a step whose counters were taken; `scaled` is what a clip multiplied each head's logits by."""
        self._must_be_on()
        self._say_if_nothing_ran()
        if found is not None:
            self._send(found, loss, scaled)
        self.current_step += 1
        self._choose()
        self._receive(wait=False)

    def _say_if_nothing_ran(self) -> None:
        """Warn, once, of a step that was to be watched and in which no attention was."""
        calls, self.gauge.calls = self.gauge.calls, 0
        if calls or not self.gauge.measuring or self.gauge.in_graph or self._said:
            return
        self._said = True
        warnings.warn(
            f"no attention was counted in step {self.current_step}: either the model did not run in training mode "
            "(in_evaluation=True counts the others), or it attends otherwise since it was watched, or the step was "
            "ended twice: with a QKClip call its step alone",
            AttentionWarning,
            stacklevel=4,
        )

    def read(self) -> Reading:
        """Return what was gathered since the last step ended, of all processes; waits for the device.

        Call it before `step`. Afterwards `latest` has that step, and this has no row: its maxima are -inf.

        Raises:
            ValueError: no row was ever gathered: the model has not run, or not in training.
        """
        self._receive(wait=True)
        if not self.gauge.layers:
            raise ValueError("no row was gathered yet: run the model, in training mode or with in_evaluation=True")
        found = joined(self._counters())
        if _is_distributed():
            found.reduce(self._group)
        return _reading(self.heads(), [found.maximum.cpu(), found.sums.cpu(), found.bins.cpu()])

    def flush(self) -> None:
        """Wait for every step that is on its way, and record it."""
        self._receive(wait=True)

    def close(self) -> None:
        """Stop watching, and leave the model as it was. Harmless the second time."""
        try:
            self._receive(wait=True)
        finally:
            if self._route is not None:
                self._route.close()
                self._route = None
            if self._record is not None:
                self._record.close()

    def __enter__(self) -> Self:
        self._must_be_on()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _must_be_on(self) -> None:
        if self._route is None:
            raise RuntimeError("this watch was closed, and its model is not watched any more: call watch(model) again")

    def name_of(self, place: int) -> str:
        """Return the name of a head, by its place among all."""
        layer, head = _places(self.heads())[place]
        return f"layer {layer}, head {head}"

    def heads(self) -> tuple[int, ...]:
        """Return how many heads each layer has; 0 of one that has not run yet, as of images where all was text."""
        layers = max(layer.indices.stop for layer in self.layers)
        return tuple(len(self.gauge.layers[at].maximum) if at in self.gauge.layers else 0 for at in range(layers))

    def _choose(self) -> None:
        self.gauge.measuring = self.current_step % self.every == 0

    def _counters(self) -> list[Counters]:
        return [self.gauge.layers[layer] for layer in sorted(self.gauge.layers)]

    def _send(self, found: Counters, loss: Any, scaled: Tensor | None) -> None:
        tensors = [found.maximum, found.sums, found.bins]
        tensors.append(torch.ones_like(found.maximum) if scaled is None else scaled)
        is_tensor = isinstance(loss, Tensor)
        if is_tensor:
            tensors.append(loss.detach().float())
        else:
            self._losses[self.current_step] = loss
        on_gpu = found.maximum.is_cuda
        sent = [x.to("cpu", non_blocking=True) for x in tensors]
        come: Any = None
        if on_gpu:
            come = torch.cuda.Event()  # type: ignore[no-untyped-call]
            come.record(torch.cuda.current_stream(found.maximum.device))
        self._sent.append(Snapshot(self.current_step, self.heads(), sent, come))

    def _receive(self, *, wait: bool) -> None:
        while self._sent and (wait or self._sent[0].come is None or self._sent[0].come.query()):
            snapshot = self._sent.popleft()
            if snapshot.come is not None:
                snapshot.come.synchronize()
            self._take_in(snapshot)
        if self._stop is not None:
            stop, self._stop = self._stop, None
            raise stop

    def _take_in(self, snapshot: Snapshot) -> None:
        reading = _reading(snapshot.heads, snapshot.tensors)
        step = snapshot.step
        loss = float(snapshot.tensors[4]) if len(snapshot.tensors) > 4 else self._losses.pop(step, None)
        self.latest, self.latest_step = reading, step
        found = [] if self.guard is None else self.guard.check(step, reading)
        if self._record is not None:
            line: dict[str, Any] = {"step": step}
            if loss is not None:
                line["loss"] = float(f"{float(loss):.6g}") if np.isfinite(float(loss)) else None
            line |= reading.to_json()
            if found:
                line["warned"] = [each.to_json() for each in found]
            names = [layer.name for layer in self.layers for _ in layer.indices]
            about = {"layers": names, "heads": list(snapshot.heads), "every": self.every}
            self._record.append(about, line)
        for listener in self.listeners:
            listener(step, reading)
        for each in found:
            if self.guard is not None and self.guard.stops:
                self._stop = AttentionStoppedError(str(each))
            else:
                warnings.warn(str(each), each.category, stacklevel=4)


class _TrainingGauge(Gauge):
    """A gauge that counts while the model trains, and in evaluation where it is asked to."""

    def __init__(self, model: nn.Module, in_evaluation: bool) -> None:
        super().__init__(device=next((p.device for p in model.parameters() if p.device.type != "meta"), None))
        self._model, self._in_evaluation = model, in_evaluation

    @property
    def counts(self) -> bool:
        """Whether a call that is made now is counted."""
        return self.measuring and (self._in_evaluation or self._model.training)


def check_loss(loss: Any) -> None:
    """Raise ValueError for a loss of several numbers, before the step is counted."""
    if isinstance(loss, Tensor) and loss.numel() != 1:
        raise ValueError(f"expected the loss of a step, one number, got a tensor of shape {tuple(loss.shape)}")


def _route(model: nn.Module, gauge: Gauge) -> Route:
    """Reach the model's attention: our own slots as they stand, anything else as transformers' models are reached."""
    slots = [(name, part) for name, part in model.named_modules() if isinstance(part, Watchable)]
    if slots:
        _refuse_beside_slots(model)
        return _Slots(slots, gauge)
    route: Route = import_module(ROUTES).route(model, gauge)
    return route


def _refuse_beside_slots(model: nn.Module) -> None:
    """Raise NotImplementedError for attention beside the slots, whose rows nobody would count."""
    reached: Any = import_module(ROUTES).is_attention if "transformers" in sys.modules else _is_multihead
    other = next((name for name, part in model.named_modules() if reached(part)), None)
    if other is not None:
        raise NotImplementedError(
            f"{other} of this {type(model).__name__} attends beside WatchedAttention, and would not be counted: attend "
            "through sharpmax.hf.Attention in place of WatchedAttention, or watch a part: watch(model.part)"
        )


def _is_multihead(module: nn.Module) -> bool:
    return isinstance(module, nn.MultiheadAttention)


class _Slots:
    """The slots of a model, each of which carries the gauge while it is watched."""

    def __init__(self, slots: list[tuple[str, Any]], gauge: Gauge) -> None:
        self.layers = [Layer(name, slot, range(index, index + 1)) for index, (name, slot) in enumerate(slots)]
        for name, slot in slots:
            if slot.gauge is not None:
                raise RuntimeError(f"{name or 'this slot'} is watched already; close that watch first")
        for index, (_, slot) in enumerate(slots):
            slot.gauge, slot.layer = gauge, index

    def close(self) -> None:
        """Leave the slots as they were."""
        for layer in self.layers:
            layer.module.gauge = None  # type: ignore[assignment]


def _reading(heads: tuple[int, ...], tensors: list[Tensor]) -> Reading:
    maximum, sums, bins, *rest = (x.double().numpy() if x.is_floating_point() else x.numpy() for x in tensors)
    return Reading(heads, maximum, sums, bins, rest[0] if rest else None)


def _places(heads: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(layer, head) for layer, count in enumerate(heads) for head in range(count)]


def _agreed(step: int, group: "dist.ProcessGroup | None") -> int:
    """Return the step of the process that writes the record: the others do not read it."""
    if not _is_distributed():
        return step
    told = [step]
    dist.broadcast_object_list(told, group=group, group_src=0)
    return told[0]


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _rank(group: "dist.ProcessGroup | None") -> int:
    return dist.get_rank(group) if _is_distributed() else 0
