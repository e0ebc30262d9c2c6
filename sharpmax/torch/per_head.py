"""A policy that holds one value per head: as tensors, and for a part of the heads."""

import dataclasses
from typing import Any

import torch

from sharpmax.core.checks import shape_of
from sharpmax.core.policies import Detached, PerHead, PerLayer
from sharpmax.core.policies.base import Policy
from sharpmax.torch.policy_kinds import keep_numbers


def with_tensors(policy: Policy, device: torch.device) -> Policy:
    """Return the policy with one value per head, as a card holds it in nested tuples, as a tensor on the device.

    Done once, not at every call; and an implementation that takes a few heads at a time sees that it is an array.
    On a CPU it is as exact as the card; elsewhere float32, which is all that some devices have.
    """
    wide = torch.float64 if device.type == "cpu" else torch.float32
    with torch.inference_mode(False):  # a server attends in it, and a tensor of that mode does not tell of writes
        columns = {
            name: torch.tensor(value, dtype=wide, device=device)
            for name in policy.learnable
            if isinstance(value := getattr(policy, name), tuple) and value and isinstance(value[0], tuple)
        }
    if columns:
        policy = dataclasses.replace(policy, **columns)  # type: ignore[type-var]
        keep_numbers(policy, device)
    return policy


def of_heads(policy: Policy, start: int, stop: int) -> Policy:
    """Return the policy of the query heads [start, stop) alone: of a few at a time, or under tensor parallelism.

    It is the policy itself where that holds the same for all heads, or these are all that it has.
    """
    if isinstance(policy, PerHead):
        return policy if stop - start == len(policy.policies) else PerHead(policy.policies[start:stop])
    if isinstance(policy, Detached):
        inner = of_heads(policy.policy, start, stop)
        return policy if inner is policy.policy else Detached(inner)
    columns: dict[str, Any] = {
        name: value[start:stop]
        for name in policy.learnable
        if len(shape := shape_of(value := getattr(policy, name))) == 2 and shape[0] not in (1, stop - start)
    }
    return dataclasses.replace(policy, **columns) if columns else policy  # type: ignore[type-var]


def heads_of(policy: Policy) -> int | None:
    """Return how many heads the policy tells apart; None where it is the same for all."""
    if isinstance(policy, PerHead):
        return len(policy.policies)
    if isinstance(policy, Detached):
        return heads_of(policy.policy)
    return next((shape[-2] for shape in policy.field_shapes if len(shape) > 1 and shape[-2] > 1), None)


def check_columns(policy: Policy) -> None:
    """Raise ValueError for an array that is not one value per head: it would run along the queries."""
    shape = next((shape for shape in _shapes(policy) if shape and shape[-1] != 1), None)
    if shape is not None:  # where there are as many queries as heads it would even fit
        raise ValueError(
            f"one value per head is an array of shape (heads, 1), got {shape}: its last axis is the queries'"
        )


def _shapes(policy: Policy) -> list[tuple[int, ...]]:
    match policy:
        case PerHead() | PerLayer():
            return [shape for member in policy.policies for shape in _shapes(member)]
        case Detached():
            return _shapes(policy.policy)
        case _:
            return policy.field_shapes
