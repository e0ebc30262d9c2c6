"""Measure how fast a model reads, and forecast what reading more will take."""

import time

import torch

from sharpmax.hf.models.load import LoadedModel

PROBED = 192  # tokens that are read to measure the pace
SHARPENED = 1.3  # times as long as plain, with a policy
LEARNED = 3.5  # times as long as plain, with a policy and its gradient


@torch.no_grad()
def seconds_per_token(loaded: LoadedModel) -> float:
    """Return how long a token takes to read, from one pass after a short one to warm up."""
    length = min(PROBED, loaded.context)
    ids = torch.zeros(1, length, dtype=torch.long, device=loaded.model.device)
    loaded.model.base_model(input_ids=ids[:, :8])
    _wait(loaded)
    began = time.perf_counter()
    loaded.model.base_model(input_ids=ids)
    _wait(loaded)
    return (time.perf_counter() - began) / length


def _wait(loaded: LoadedModel) -> None:
    if loaded.model.device.type == "cuda":
        torch.cuda.synchronize()
