"""Rows of many sequences: the paged cache of continuous batching, and documents packed end to end."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sharpmax.extras import extra
from sharpmax.torch.paged import Pages

with extra("hf"):
    import transformers

OLDEST = (5, 19)
"""The version of transformers from which its paged cache says of itself what we ask."""


class Batch(NamedTuple):
    """What one layer's call attends to: the cache, and which queries are whose."""

    pages: Pages
    ends: Tensor  # (S + 1,)
    longest_query: int


def must_read_pages() -> None:
    """Raise NotImplementedError where the paged cache of this transformers is another than we read."""
    if tuple(map(int, transformers.__version__.split(".")[:2])) < OLDEST:
        raise NotImplementedError(
            f"continuous batching inside sharpen needs transformers {'.'.join(map(str, OLDEST))} or later, found "
            f"{transformers.__version__}; call model.generate on a padded batch instead"
        )


def batch_of(cache: Any, layer: int, key: Tensor, value: Tensor, options: dict[str, Any]) -> Batch:
    """Write a layer's new keys and values (1, Hkv, T, D) into the cache, and return what its queries attend to.

    Full attention reads the cache where it lies. A sliding window overwrites what it reads, so transformers gathers it.
    """
    allocator = cache.layer_to_allocator[layer]
    read, write = options["read_index"][allocator.index], options["write_index"][allocator.index]
    key_ends, longest = options["cu_seq_lens_k"][allocator.layer_type], options["max_length_k"][allocator.layer_type]
    views = getattr(allocator, "_kv_token_views", {}).get(layer)
    if allocator.layer_type == "full_attention" and views is not None and read.numel():
        for view, new in zip(views, (key, value), strict=True):
            view.index_copy_(0, write, new[0].transpose(0, 1))
        slots = min(map(len, views))  # the values' view begins later in the same memory
        keys, values, table = *(view[:slots] for view in views), read
    else:
        # It edits the options that it is given.
        gathered = cache.update(key_states=key, value_states=value, layer_idx=layer, kwargs=dict(options))
        keys, values = (x[0].transpose(0, 1) for x in gathered)
        table = torch.arange(len(keys), device=key.device)
    pages = Pages(keys[:, None], values[:, None], table, lengths=key_ends.diff(), starts=key_ends, longest=int(longest))
    return Batch(pages, options["cu_seq_lens_q"], int(options["max_length_q"]))


def same_document(query_ends: Tensor, key_ends: Tensor, queries: int, keys: int) -> Tensor:
    """Return the mask (1, 1, queries, keys) of packed rows: which keys stand in the query's own document."""

    def document(ends: Tensor, count: int) -> Tensor:
        return torch.searchsorted(ends[1:].contiguous(), torch.arange(count, device=ends.device), right=True)

    return (document(query_ends, queries)[:, None] == document(key_ends, keys)[None, :])[None, None]
