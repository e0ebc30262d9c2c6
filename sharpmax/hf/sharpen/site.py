"""A site: what a sharpened attention module carries, and the one call that all ways of attending end in."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import sharpmax.torch
from sharpmax.core.policies.base import Policy
from sharpmax.core.softmax import SilentPolicyWarning
from sharpmax.core.stats import RowStats
from sharpmax.torch.documents import Documents
from sharpmax.torch.request import Request
from sharpmax.torch.varlen import attend_packed, packed_request, packed_statistics

Observer = Callable[[int, RowStats], None]
"""Receives a layer's index and the statistics (batch, head, query) of each of its calls."""

Probe = Callable[[int, Tensor, Tensor, dict[str, Any]], None]
"""Receives a layer's index, query, key and the other arguments of each attention call, before it is made."""


@dataclass
class Run:
    """What one `sharpen` keeps while it is on: its observer, its implementation, and how often it was called."""

    observer: Observer | None = None
    implementation: str | None = None
    probe: Probe | None = None
    calls: int = 0
    in_forward: bool = False
    with_graph: bool = False
    """Whether the forward pass that runs now is one to differentiate."""
    owed: int = 0
    """Calls without a graph in such a pass, which reentrant gradient checkpointing has still to run again."""
    highest_entropy: float = 0.0


@dataclass
class Site:
    """One attention module: the policies of the layers it runs as, and how many of them this forward pass has run."""

    run: Run
    first_layer: int
    policies: tuple[Policy, ...]
    ran: int = 0
    watched: bool = False

    def next_layer(self) -> tuple[int, Policy]:
        """Return the index and policy of the layer that attends now."""
        if len(self.policies) == 1:
            return self.first_layer, self.policies[0]
        if not self.run.in_forward:
            what = (
                "gradient checkpointing runs it again without saying as which; switch gradient checkpointing off"
                if recomputing()
                else "it was called without saying as which; call the whole model"
            )
            raise NotImplementedError(f"one module serves many layers here, and {what}")
        index = self.ran % len(self.policies)
        self.ran += 1
        return self.first_layer + index, self.policies[index]


def attend_at(
    site: Site, query: Tensor, key: Tensor, value: Tensor, *, documents: Documents | None = None, **options: Any
) -> Tensor:
    """Attend with the site's policy, (B, H, L, D) as `sharpmax.torch.attention`, and tell whoever observes.

    `documents` make one row of it, of many that fused kernels keep apart.

    Gradient checkpointing calls it again in the backward pass: whoever looks is told of the first call only, but the
    same is computed, because autograd compares the two graphs.
    """
    layer, policy = site.next_layer()
    run, again = site.run, recomputing()
    run.calls += 1
    if again:
        run.owed = max(0, run.owed - 1)
    elif run.with_graph and not torch.is_grad_enabled():
        run.owed += 1
    if run.probe is not None and not again:
        run.probe(layer, query, key, options)
    # A policy that switches itself off is watched once a site: enough to say so, too little to cost.
    if policy.silent_above is not None and not site.watched and not torch.compiler.is_compiling():
        _watch(site, query, key, documents, options)
    asked = {**options, "policy": policy, "implementation": run.implementation}
    if run.observer is None:
        output: Tensor = _attention(query, key, value, documents, **asked)
        return output
    with warnings.catch_warnings():  # said once, on leaving
        warnings.simplefilter("ignore", SilentPolicyWarning)
        output, stats = _attention(query, key, value, documents, return_stats=True, **asked)
    if not again:
        run.observer(layer, stats)
    return output


def recomputing() -> bool:
    """Tell whether this call stands inside a backward pass: gradient checkpointing runs a layer again there."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def _attention(query: Tensor, key: Tensor, value: Tensor, documents: Documents | None, **options: Any) -> Any:
    if documents is None:
        return sharpmax.torch.attention(query, key, value, **options)
    output, stats = attend_packed(_packed(query, key, value, documents, options))
    return (output, stats) if options.get("return_stats") else output


def _packed(query: Tensor, key: Tensor, value: Tensor, documents: Documents, options: dict[str, Any]) -> Request:
    request = packed_request(query, key, value, documents, **options)
    if request is None:
        raise NotImplementedError("no fused kernel serves these packed documents; give them in batches")
    return request


@torch.no_grad()
def _watch(site: Site, query: Tensor, key: Tensor, documents: Documents | None, options: dict[str, Any]) -> None:
    """Note the highest entropy of the rows, beside the graph: the graph is the same with and without."""
    if documents is None:
        of_logits = {name: option for name, option in options.items() if name != "dropout"}
        entropy = sharpmax.torch.row_stats(query, key, **of_logits).entropy
    else:
        asked = {**options, "implementation": site.run.implementation}
        entropy = packed_statistics(_packed(query, key, key, documents, asked)).entropy
    if entropy.numel():
        site.run.highest_entropy = max(site.run.highest_entropy, float(entropy.max()))
        site.watched = True
