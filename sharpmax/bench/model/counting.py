"""What a call asks of the host and the device: kernels run, and launches made."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

COPIES = ("Memcpy", "Memset")
LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch")


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
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    # As the device's tracer gives them: to make PyTorch's own events of them takes far longer than the call.
    kernels = launches = 0
    for event in profile.profiler.kineto_results.events():
        if event.device_type().name == "CUDA":
            kernels += not event.name().startswith(COPIES)
        else:
            launches += event.name().startswith(LAUNCHES)
    return Asked(kernels, launches)
