"""The functions that transformers' attention interface calls: its conventions in, ours out.

    fn(module, query (B, Hq, Lq, D), key (B, Hkv, Lk, D), value, attention_mask, …) -> (output (B, Lq, Hq, Dv), None)

What a missing mask means depends on how the model makes its masks, so there are two names:

- `NAME`, for models that transformers runs by sdpa or flash attention. They leave a causal mask out where `is_causal`
  says as much: several queries are then causal, and one query sees everything.
- `EAGER_NAME`, for models that only attend eagerly. Their `is_causal` is not to be trusted. They get eager's own masks,
  and a missing one hides nothing.

A mask arrives boolean, or floating with a bias inside. A window is already in the mask wherever it hides anything.
What else changes the logits is honoured, or refused by name; nothing is dropped.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sharpmax.core.policies import Constant
from sharpmax.extras import extra
from sharpmax.hf.sharpen.grouped import attend_grouped
from sharpmax.hf.sharpen.paged import batch_of, must_read_pages, same_document
from sharpmax.hf.sharpen.site import Run, Site, attend_at, attend_one
from sharpmax.torch.documents import Documents
from sharpmax.torch.torch_internals import recomputing

with extra("hf"):
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME, EAGER_NAME = "sharpmax", "sharpmax_eager"
"""Our names in both interfaces. transformers treats names with `flash`, `sdpa`, `flex_attention` or `/` specially."""

HIDDEN = -9e3
"""A floating mask hides a key at this value and below, under every policy: it is no bias but a mask.

Models hide with -inf, the dtype's lowest number, -1e9 (EoMT) or -1e4 (MarkupLM and older exports; -9984 in bfloat16).
"""
SHIFTED_WINDOWS, HIDDEN_IN_THEM = "Swin", -50.0
"""Swin and its relatives hide what lies outside a shifted window with -100, plus a learned bias of a few units."""

PLAIN = Site(Run(), 0, (Constant(1.0),), torch.device("cpu"))
"""What a module does that shares its config with a sharpened part of its model, and is not in that part."""

CARRIED = frozenset(
    {"position_ids", "cache_position", "position_embeddings", "num_items_in_batch", "target", "input_ids"}
    | {"logits_indices", "logits_processor_args"}
)
"""Tensors that models pass along to every attention function and that do not change the logits."""

NO_WEIGHTS = (
    "a sharpened model forms no attention weights, so output_attentions=True has nothing to return; leave it out, and "
    "observe each row's statistics instead: sharpen(model, policy, observer=…)"
)


def interface_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    indices: Tensor | None = None,
    cache: Any = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Any = None,
    documents: Documents | None = None,
    counted: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers asks, at the temperature that the module's site chooses; within `documents` if given.

    `indices` (B, Lq, k) are the only keys that each query sees, as DeepSeek's sparse attention chooses them. `cache` is
    the paged one of continuous batching; without it, `cu_seq_lens_*` mark the documents of a packed row. `counted`: a
    watch has these rows already.
    """
    _refuse_unknown(module, kwargs)
    site: Site = getattr(module, "sharpmax_site", PLAIN)
    changes = (softcap, s_aux, position_bias, indices, documents, cache, cu_seq_lens_q, cu_seq_lens_k)
    if site.late is not None:
        if cache is not None or cu_seq_lens_q is not None or cu_seq_lens_k is not None:
            raise NotImplementedError(
                f"{type(site.late.extension).__name__} is not served in continuous batching or packed rows: call "
                "model.generate, or extend the model by Yarn"
            )
        if not site.late.is_grouped:
            query, key = site.late.turned(module, query, key, kwargs.get("position_ids"), attention_mask)
    plainly = None
    is_grouped = site.late is not None and site.late.is_grouped
    if all(change is None for change in changes) and not is_grouped:
        if site.is_plain and query.dtype == key.dtype == value.dtype:
            chances = {"dropout": dropout if module.training else 0.0, "scaling": scaling, "is_causal": is_causal}
            plainly = partial(_plain_attention, module, query, key, value, attention_mask, chances)
            gauge = site.run.gauge
            if counted or gauge is None or not gauge.counts:
                if not torch.compiler.is_compiling():
                    site.run.note_call(again=recomputing())
                return plainly(), None
        elif query.shape[2] == 1 and not module.training:
            one = attend_one(site, query, key, value, attention_mask, scaling)
            if one is not None:
                return one.transpose(1, 2), None  # of one query that is contiguous
    batch = ends = None
    if cache is not None:
        must_read_pages()
        where = {**kwargs, "cu_seq_lens_q": cu_seq_lens_q, "cu_seq_lens_k": cu_seq_lens_k}
        if attention_mask is None or is_causal:  # a manager that makes masks says that nothing is causal beside them
            attention_mask = None
            batch = batch_of(cache, module.layer_idx, key, value, where)  # type: ignore[arg-type]
        else:  # of a manager that was at work before the model was sharpened
            refuse_positions(site, "beside a mask")
            key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=where)
    elif cu_seq_lens_q is not None or cu_seq_lens_k is not None:
        first = cu_seq_lens_q if cu_seq_lens_q is not None else cu_seq_lens_k
        ends = (first, cu_seq_lens_k if cu_seq_lens_k is not None else first)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    packed = batch is not None or (ends is not None and attention_mask is None)
    if not causal and not packed and attention_mask is None and query.shape[2] != key.shape[2]:
        refuse_positions(site, "in cross attention, whose keys are of another sequence")
    causal = causal and attention_mask is None and (query.shape[2] > 1 or packed)
    if causal and not packed and key.shape[2] > query.shape[2]:  # prefill of a static cache, whose rest is empty
        length = query.shape[2]
        key, value = key[:, :, :length], value[:, :, :length]
        position_bias = None if position_bias is None else position_bias[..., :length]
    mask, bias = split_mask(attention_mask, HIDDEN_IN_THEM if SHIFTED_WINDOWS in type(module).__name__ else HIDDEN)
    if position_bias is not None:
        visible, by_position = split_mask(position_bias)
        mask = visible if mask is None else mask & visible
        bias = by_position if bias is None else bias + by_position
    if indices is not None:
        chosen = torch.zeros(*indices.shape[:2], key.shape[2], dtype=torch.bool, device=query.device)
        chosen = chosen.scatter(-1, indices.long(), True)[:, None]
        mask = chosen if mask is None else mask & chosen
    if batch is not None and sliding_window is not None:
        refuse_positions(site, "in the window that a paged cache keeps")
    if is_grouped:
        refused = {"a bias": bias, "a softcap": softcap, "sinks": s_aux}
        refused["dropout"] = dropout if module.training and dropout else None
        key, value = key.to(query.dtype), value.to(query.dtype)
        output = attend_grouped(
            site, module, query, key, value, mask=mask, positions=kwargs.get("position_ids"), scale=scaling,
            refused=refused,
        )  # fmt: skip
        return output.to(value.dtype).transpose(1, 2).contiguous(), None
    if ends is not None and mask is not None:
        refuse_positions(site, "beside a mask")
        mask, ends = mask & same_document(*ends, query.shape[2], key.shape[2]), None
    if causal and sliding_window is not None and key.shape[2] > sliding_window and not packed:
        raise NotImplementedError(
            f"{type(module).__name__} asked for a window of {sliding_window} without a mask that says so"
        )
    output = attend_at(
        site,
        query,
        key.to(query.dtype),
        value.to(query.dtype),
        mask=mask,
        bias=bias,
        is_causal=causal,
        scale=scaling,
        softcap=softcap,
        sinks=s_aux,
        dropout=dropout if module.training else 0.0,
        documents=documents,
        positions=kwargs.get("position_ids"),
        batch=batch,
        ends=ends,
        plainly=plainly,
        counted=counted,
        **({"window": sliding_window} if packed else {}),
    )
    return (output if plainly else output.to(value.dtype).transpose(1, 2).contiguous()), None


def _plain_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: dict[str, Any]
) -> Tensor:
    """Attend as the plain model does, (B, Lq, Hq, Dv)."""
    output: Tensor = sdpa_attention_forward(module, query, key, value, mask, **options)[0]
    return output


def eager_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attend as `interface_attention`, for a model that only attends eagerly: a missing mask hides nothing."""
    return interface_attention(module, query, key, value, attention_mask, **{**options, "is_causal": False})


def split_mask(mask: Tensor | None, hidden_from: float = HIDDEN) -> tuple[Any, Any]:
    """Return (boolean mask, bias) from a mask of either kind: what is at `hidden_from` or below is hidden.

    Hidden keys must leave the logits, not be scaled with them: beta times the lowest number is -inf or not enough.
    """
    if mask is None or mask.dtype == torch.bool:
        return mask, None
    if not mask.is_floating_point():
        raise TypeError(
            f"attention_mask with a row per query must be boolean or floating, got {mask.dtype}; cast it first"
        )
    hidden = mask <= hidden_from
    return ~hidden, mask.masked_fill(hidden, 0.0)


def refuse_positions(site: Site, where: str) -> None:
    """Raise NotImplementedError for a policy of positions, where nobody can tell them."""
    for policy in site.policies:
        if "position" in policy.needs:
            raise NotImplementedError(
                f"{type(policy).__name__} needs a query's position in its sequence, which is not known {where}; use a "
                "policy of n, the visible keys"
            )


def _refuse_unknown(module: nn.Module, kwargs: dict[str, Any]) -> None:
    if kwargs.get("output_attentions"):
        raise NotImplementedError(NO_WEIGHTS)
    for name, argument in kwargs.items():
        if isinstance(argument, Tensor) and name not in CARRIED and not name.startswith("max_length"):
            raise NotImplementedError(
                f"{type(module).__name__} passes {name!r}, a tensor that sharpmax does not know how to honour; please "
                "report it, and sharpen another part of the model: sharpen(model.part, …)"
            )
