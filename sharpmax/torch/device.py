"""Ask a device whether anything can be computed on it, and a CUDA device, once, what it can do."""

from functools import cache

import torch


def device_or_best(device: str | None) -> str:
    """Return the device that was asked for; where none was, a GPU if there is one."""
    return device or ("cuda" if torch.cuda.is_available() else "cpu")


def must_run_on(device: str) -> None:
    """Raise ValueError if nothing can be computed on the device."""
    try:
        torch.zeros(1, device=device).item()  # to be read back: the device "meta" takes numbers and keeps none
    except (AssertionError, RuntimeError) as error:  # the first from a PyTorch that was built without it
        first = next(iter(str(error).splitlines()), "no reason given")
        raise ValueError(f"cannot run on the device {device!r}: {first}") from error


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """Return the compute capability of a CUDA device."""
    return torch.cuda.get_device_capability(device)


@cache
def multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors a Hopper device has; of another kind, none."""
    properties = torch.cuda.get_device_properties(device)
    return int(properties.multi_processor_count) if (properties.major, properties.minor) == (9, 0) else 0
