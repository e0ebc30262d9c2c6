"""Ask a CUDA device, once, what it can do."""

from functools import cache

import torch


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """Return the compute capability of a CUDA device."""
    return torch.cuda.get_device_capability(device)


@cache
def multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors a Hopper device has; of another kind, none."""
    properties = torch.cuda.get_device_properties(device)
    return int(properties.multi_processor_count) if (properties.major, properties.minor) == (9, 0) else 0
