"""A packed row attended to in one call of fused kernels, where these attend as the module would."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from sharpmax.core.policies import Constant
from sharpmax.hf.sharpen.interface import NAME as SHARPENED
from sharpmax.hf.sharpen.site import site_of
from sharpmax.torch.documents import Documents
from sharpmax.torch.torch_internals import recomputing
from sharpmax.torch.varlen import attend_packed, packed_request

CHANGES_LOGITS = ("softcap", "s_aux", "position_bias", "indices", "cache", "output_attentions")
"""Options of transformers' attention interface that the fused kernels do not honour."""


def attend_fused(
    module: Any,
    name: str,
    attend: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    documents: Documents,
    options: dict[str, Any],
) -> Tensor | None:
    """Return the output (1, T, H, Dv) of a row (1, H, T, D) of packed documents, or None if it must go in batches.

    `name` is the module's entry in transformers' attention interface, `attend`: plain (`sdpa`), or ours.
    """
    if query.shape[2] < 2 or not _is_bare(module, documents, options):
        return None
    site: Any = site_of(module)
    is_watched = name == SHARPENED and site.is_plain and len(site.policies) == 1  # and nothing else is done to it
    if name == "sdpa" or is_watched:
        request = packed_request(query, key, value, documents, policy=Constant(1.0), scale=options.get("scaling"))
        if request is None:
            return None
        if is_watched:
            site.run.note_call(again=recomputing())
            count_packed_rows(module, query, key, documents, {**options, "sliding_window": None})
        return attend_packed(request)[0].transpose(1, 2)
    if name != SHARPENED or not _serves_site(module.sharpmax_site, query, key, value, documents, options):
        return None
    within = {**options, "sliding_window": None}  # it hides nothing of a document, but may be shorter than the row
    output: Tensor = attend(module, query, key, value, None, documents=documents, **within)[0]
    return output


def count_packed_rows(module: Any, query: Tensor, key: Tensor, documents: Documents, options: dict[str, Any]) -> bool:
    """Tell a watch of the row's own rows, before padding joins them; return whether there is one that counts now."""
    site: Any = site_of(module)
    gauge = None if site is None else site.run.gauge
    if gauge is None or not gauge.counts:
        return False
    if len(site.policies) > 1:
        raise NotImplementedError("packed rows of a module that serves many layers are not watched")
    window = options.get("sliding_window")
    gauge(
        site.first_layer, query, key, documents=documents, is_causal=True, scale=options.get("scaling"),
        softcap=options.get("softcap"), sinks=options.get("s_aux"), window=window,
    )  # fmt: skip
    return True


def _is_bare(module: Any, documents: Documents, options: dict[str, Any]) -> bool:
    """Tell whether a module attends causally, with nothing between its logits and their softmax but the policy."""
    asked, window = options.get("is_causal"), options.get("sliding_window")
    return bool(
        (getattr(module, "is_causal", True) if asked is None else asked)
        and (window is None or window >= documents.longest)
        and (not options.get("dropout") or not module.training)
        and all(options.get(name) is None or options[name] is False for name in CHANGES_LOGITS)  # some are tensors
    )


def _serves_site(
    site: Any, query: Tensor, key: Tensor, value: Tensor, documents: Documents, options: dict[str, Any]
) -> bool:
    # A probe is promised batches of sequences.
    return site.run.probe is None and all(
        packed_request(
            query, key, value, documents, policy=policy, implementation=site.run.implementation,
            scale=options.get("scaling"), return_stats=True,
        ) is not None
        for policy in site.policies
    )  # fmt: skip
