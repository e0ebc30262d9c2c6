"""One attention layer of a server: its policy from the card, and the call of paged attention.

A mixin for an implementation of vLLM's, whose constructor, metadata and cache it keeps. The cache is taken as
(blocks, key heads, size, 2·width) with a key's numbers before its value's, which is what vLLM's Triton backend writes.
"""

from typing import Any

import torch
from torch import Tensor

from sharpmax.core.policies import Policy
from sharpmax.torch.paged import Pages, paged_attention
from sharpmax.torch.per_head import of_heads, with_tensors
from sharpmax.vllm.plugin import served_by
from sharpmax.vllm.settings import card_path, policy_for


class SharpenedLayer:
    """Attention with the card's policy of this layer; the fields that are only declared are vLLM's."""

    num_heads: int
    head_size: int
    scale: float
    attn_type: str
    sinks: Tensor | None
    logits_soft_cap: float
    alibi_slopes: Tensor | None
    sliding_window: Any

    def take_card(self, config: Any) -> None:
        """Read the card that the server's config names, when the layer is made.

        Raises:
            NotImplementedError: what only a layer says of itself, and cannot be served.
            ValueError: a card that cannot be served, also one that was changed since the server started.
        """
        if self.attn_type != "decoder":
            raise NotImplementedError(f"sharpmax: {self.attn_type} attention cannot be served with a card")
        if self.alibi_slopes is not None:
            raise NotImplementedError("sharpmax: positions by ALiBi cannot be served with a card")
        if getattr(self, "chunk_lookback", -1) > -1:
            raise NotImplementedError("sharpmax: attention in chunks that look back cannot be served with a card")
        path = card_path(config.additional_config, config.model_config.model)
        assert path is not None, "a layer is sharpened only where there is a card"
        self._of_model = policy_for(path, config.additional_config, served_by(config))
        self._of_layer: Policy | None = None

    def forward(
        self, layer: Any, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor, attn_metadata: Any,
        output: Tensor, output_scale: Tensor | None = None, output_block_scale: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Attend with the card's policy; as in vLLM's own implementation otherwise."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("sharpmax: an output that is quantised cannot be served with a card")
        return self.attend(layer, query, kv_cache, attn_metadata, output)

    def attend(self, layer: Any, query: Tensor, kv_cache: Tensor, metadata: Any, output: Tensor) -> Tensor:
        """Attend to the cache with the queries of a batch; without metadata, as in a trial run, make ready only."""
        if self._of_layer is None:
            self._of_layer = self._resolved(layer.layer_name, query)
        if metadata is None:
            return output.fill_(0)
        if metadata.causal is not True:
            raise NotImplementedError("sharpmax: attention that is not causal cannot be served with a card")
        tokens = metadata.num_actual_tokens
        by_place = kv_cache.transpose(1, 2)
        key, value = by_place[..., : self.head_size], by_place[..., self.head_size :]
        attended = paged_attention(
            query[:tokens],
            Pages(key, value, metadata.block_table, metadata.seq_lens, longest=metadata.max_seq_len),
            metadata.query_start_loc,
            policy=self._of_layer,
            longest_query=metadata.max_query_len,
            scale=self.scale,
            window=self.visible_keys(),
            softcap=self.logits_soft_cap or None,
            sinks=self.sinks,
        )
        output[:tokens].copy_(attended)
        return output

    def visible_keys(self) -> int | None:
        """Return how many keys a query of this layer sees at most, None for all: vLLM keeps a number or two ends."""
        left = self.sliding_window[0] + 1 if isinstance(self.sliding_window, tuple) else self.sliding_window
        return left if left > 0 else None

    def _resolved(self, name: str, query: Tensor) -> Policy:
        """Return the policy of the layer of that name, for the heads that this process has."""
        from vllm.distributed import get_tensor_model_parallel_rank
        from vllm.model_executor.models.utils import extract_layer_index

        first = get_tensor_model_parallel_rank() * self.num_heads
        policy = self._of_model.for_layer(extract_layer_index(name))
        return with_tensors(of_heads(policy, first, first + self.num_heads), query.device)


def has_card(config: Any) -> bool:
    """Tell whether a server's config asks for a card."""
    model = config.model_config
    return model is not None and card_path(config.additional_config, model.model) is not None


def write_cache(kv_cache: Tensor, key: Tensor, value: Tensor, slots: Tensor) -> None:
    """Write new keys and values (T, Hkv, D) where the slots (T,) say; a negative slot is padding."""
    places = torch.nonzero(slots >= 0).flatten()
    slots, size = slots[places].long(), kv_cache.shape[2]
    kv_cache[slots // size, :, slots % size] = torch.cat([key[places], value[places]], dim=-1)
