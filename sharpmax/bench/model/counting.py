"""What a call asks of the host and the device: kernels run, launches made, graphs compiled."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

COPIES = ("Memcpy", "Memset")


class Asked(NamedTuple):
    """How many kernels ran on the device, and how many calls of the host started them (a CUDA graph is one)."""

    kernels: int
    launches: int

    def __sub__(self, other: "Asked") -> "Asked":
        return Asked(self.kernels - other.kernels, self.launches - other.launches)


def asked_of_device(call: Callable[[], Any]) -> Asked | None:
    """Run a call once under PyTorch's profiler and count; None where there is no GPU to ask."""
    if not torch.cuda.is_available():
        return None
    # The device's events and the launches, not each operator of the host: those are too many to read.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        call()
        torch.cuda.synchronize()
    events = profile.events()
    on_device = [event for event in events if event.device_type.name == "CUDA"]
    kernels = sum(not event.name.startswith(COPIES) for event in on_device)
    launches = sum(event.name.startswith(("cudaLaunch", "cuLaunch", "cudaGraphLaunch")) for event in events)
    return Asked(kernels, launches)


def graphs_compiled() -> int:
    """Return how many graphs torch.compile has made in this process so far."""
    from torch._dynamo.utils import counters  # nothing public counts them

    return int(counters["stats"]["unique_graphs"])
