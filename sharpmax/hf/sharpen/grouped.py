"""Attend by Self-Extend (arXiv 2401.01325): near keys at their own positions, far keys at those of their groups.

The two parts are disjoint and together the whole row. Both are causal attention: a query i sees the far key j where
i - j >= w, which is causal attention to all keys but the last w. No mask of queries by keys is made.
"""

from typing import Any

import torch
from torch import Tensor, nn

from sharpmax.core.extension import SelfExtend
from sharpmax.core.stats import RowStats
from sharpmax.hf.sharpen.late_rotation import LateRotation, places
from sharpmax.hf.sharpen.site import Site
from sharpmax.torch.parts import Part, attend_parts
from sharpmax.torch.torch_internals import recomputing


def attend_grouped(
    site: Site, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None,
    positions: Tensor | None, scale: float | None, refused: dict[str, Any],
) -> Tensor:  # fmt: skip
    """Return the output (B, H, Lq, Dv) for queries and keys as they were projected; tell the observer.

    `mask` is boolean, (B, 1, Lq, Lk). `refused` holds what would change the logits, and must be None.

    Raises:
        NotImplementedError: something that a row of two parts does not honour, by name.
    """
    late = site.late
    assert isinstance(late, LateRotation)
    assert isinstance(late.extension, SelfExtend)
    refused = {**refused, "a bias of the position": site.run.key_bias}
    changed = [name for name, value in refused.items() if value is not None]
    if changed or not getattr(module, "is_causal", True):
        what = ", ".join(changed) or "attention that is not causal"
        raise NotImplementedError(
            f"{type(module).__name__} asks for {what}, which SelfExtend does not honour; extend it by Yarn"
        )
    layer, policy = site.next_layer(query.device)
    run, again = site.run, recomputing()
    if run.probe is not None or (run.gauge is not None and run.gauge.counts):
        raise NotImplementedError("under SelfExtend a row has two sets of logits: diagnose the model without it")
    if not torch.compiler.is_compiling():
        run.note_call(again=again)
    window = late.extension.neighbours
    far_keys = key.shape[2] - window
    near = late.turned(module, query, key, positions)
    parts = [Part(near.query, near.key, value, {"mask": mask, "is_causal": True, "window": window, "scale": scale})]
    if far_keys > 0:
        far = late.grouped(module, query, key, positions)
        visible = None if mask is None else mask[..., :far_keys]
        options = {"mask": visible, "is_causal": True, "scale": scale}
        parts.append(Part(far.query, far.key[:, :, :far_keys], value[:, :, :far_keys], options))
    at_query = places(query, key, positions)[0][:, None]
    output, stats = attend_parts(
        parts,
        policy,
        known=_known(query, key) if mask is None and run.observer is None else None,
        position=at_query,
        implementation=run.implementation,
    )
    if stats.entropy is not None and not torch.compiler.is_compiling() and site.looks_at(layer, policy, key.shape[2]):
        site.note_silent(layer, policy, key.shape[2], stats.entropy)
    if run.observer is not None and not again:
        run.observer(layer, stats)
    return output


def _known(query: Tensor, key: Tensor) -> RowStats:
    """Return what is known of causal rows without a logit: how many keys each sees."""
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    first = key.shape[2] - query.shape[2] + 1
    count = torch.arange(first, first + query.shape[2], device=query.device, dtype=wide)
    count = count.expand(*query.shape[:2], -1)
    return RowStats(count=count, maximum=torch.zeros_like(count))
