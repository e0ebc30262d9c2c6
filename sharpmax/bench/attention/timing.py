"""Time calls that may fail, in turns, twice: the device's own time, and the wall time of a call with the host's.

- Device time, on a GPU: events around a call that is queued behind a busy device, so the host's launch time is hidden.
- Device time, on a CPU: processor time for one thread, which other programs do not lengthen; else wall time.
- Wall time: from an idle device to the result, host included. It is what a single call takes.

A contestant that takes long takes fewer turns.
"""

import gc
import sys
import warnings
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter, process_time
from typing import Any

SECONDS_EACH, FEWEST = 1.0, 3  # a contestant takes turns for about so long, and at least so many
RATIOS = {"ratio": "milliseconds", "wall_ratio": "wall_milliseconds"}
LEAD = 2_000_000  # cycles, about a millisecond: what a call may take the host
PAUSE = "spin_kernel"  # as a profile names it


def timed(calls: Mapping[str, Callable[[], Any]], *, device: str, repeats: int) -> dict[str, dict[str, Any]]:
    """Return by name the medians `milliseconds` and `wall_milliseconds`, and on a GPU the peak `megabytes`.

    Each call is made twice untimed: the first may compile. What raises gets `failed`, the reason, instead.
    """
    found: dict[str, dict[str, Any]] = {}
    turns: dict[str, int] = {}
    for name, call in calls.items():
        found[name] = attempt(lambda call=call: _warm(call, device))  # type: ignore[misc]
        if "failed" not in found[name]:
            seconds = found[name].pop("seconds")
            turns[name] = min(repeats, max(FEWEST, int(SECONDS_EACH / max(seconds, 1e-9))))
    clock = _Events() if device == "cuda" else _Seconds()
    # Wall times after all device times: to wait for the device between those would let its queue run dry.
    for time in (clock.time, clock.time_wall):
        for turn in range(max(turns.values(), default=0)):
            for name in turns:
                if turn < turns[name]:
                    time(name, calls[name])
    for name, milliseconds in clock.milliseconds().items():
        found[name] |= {"milliseconds": median(milliseconds), "wall_milliseconds": 1e3 * median(clock.wall[name])}
    return found


def attempt(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what `call` returns, or why it failed, in one line, as `failed`."""
    reason = None
    with warnings.catch_warnings(action="ignore"):  # a backend that refuses says so at length
        try:
            return call()
        except ModuleNotFoundError as error:
            reason = f"{error.name} is not installed"
        except Exception as error:  # whatever it is: the others are still to be measured
            reason = "out of memory" if "out of memory" in str(error) else _first_line(error)
    # Only now is the traceback, and with it what it held of the device's memory, let go.
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
    return {"failed": reason}


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return (lines[0].strip() if lines else type(error).__name__)[:160]


def _warm(call: Callable[[], Any], device: str) -> dict[str, Any]:
    """Call twice; return the seconds and, on a GPU, the peak memory of the second."""
    import torch

    call()
    if device != "cuda":
        clock = _Seconds()
        clock.time("", call)
        return {"seconds": clock.seconds[""][0]}
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    start = perf_counter()
    call()
    torch.cuda.synchronize()
    seconds = perf_counter() - start
    return {"seconds": seconds, "megabytes": (torch.cuda.max_memory_allocated() - before) / 1e6}


def pause() -> None:
    """Keep the GPU busy with nothing while the host queues the next call."""
    from sharpmax.torch.torch_internals import keep_device_busy

    keep_device_busy(LEAD)


class _Events:
    """Device events around each call; and a wall clock around a call on an idle device.

    The device is kept busy until the call is queued. Otherwise events would count the host's time, and most of it for a
    contestant that follows one that waits for the device.
    """

    def __init__(self) -> None:
        self.pairs: dict[str, list[Any]] = {}
        self.wall: dict[str, list[float]] = {}

    def time(self, name: str, call: Callable[[], Any]) -> None:
        import torch

        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        pause()
        start.record()
        call()
        stop.record()
        self.pairs.setdefault(name, []).append((start, stop))

    def time_wall(self, name: str, call: Callable[[], Any]) -> None:
        import torch

        torch.cuda.synchronize()
        began = perf_counter()
        call()
        torch.cuda.synchronize()
        self.wall.setdefault(name, []).append(perf_counter() - began)

    def milliseconds(self) -> dict[str, list[float]]:
        import torch

        torch.cuda.synchronize()
        return {name: [start.elapsed_time(stop) for start, stop in pairs] for name, pairs in self.pairs.items()}


class _Seconds:
    """Two clocks around each call: the processor's (for several threads the wall's) and the wall's."""

    def __init__(self) -> None:
        import torch

        self.clock = process_time if torch.get_num_threads() == 1 else perf_counter
        self.seconds: dict[str, list[float]] = {}
        self.wall: dict[str, list[float]] = {}

    def time(self, name: str, call: Callable[[], Any]) -> None:
        began, start = perf_counter(), self.clock()
        call()
        self.seconds.setdefault(name, []).append(self.clock() - start)
        self.wall.setdefault(name, []).append(perf_counter() - began)

    def time_wall(self, name: str, call: Callable[[], Any]) -> None:
        """Do nothing: here one call gives both."""

    def milliseconds(self) -> dict[str, list[float]]:
        return {name: [1e3 * s for s in seconds] for name, seconds in self.seconds.items()}
