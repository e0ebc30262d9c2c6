"""Measure how fast a model reads, and forecast what reading more will take."""

import time

import torch

from sharpmax.hf.models.load import LoadedModel

PROBED, PASSES = 128, 3  # tokens that a pass reads to measure the pace, and how many passes
SHARPENED = 1.3  # times as long as plain, with a policy
LEARNED = 3.5  # times as long as plain, with a policy and its gradient


@torch.no_grad()
def seconds_per_token(loaded: LoadedModel) -> float:
    """Return how long a token takes to read, by the fastest of a few passes: other work slows the rest."""
    length = min(PROBED, loaded.context)
    ids = torch.zeros(1, length, dtype=torch.long, device=loaded.model.device)
    taken = []
    for _ in range(PASSES):
        began = time.perf_counter()
        loaded.model.base_model(input_ids=ids)
        _wait(loaded)
        taken.append(time.perf_counter() - began)
    return min(taken) / length


def _wait(loaded: LoadedModel) -> None:
    if loaded.model.device.type == "cuda":
        torch.cuda.synchronize()
