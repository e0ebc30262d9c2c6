"""A server's attention layer without vLLM: our code on a cache of blocks, fed as a scheduler feeds it."""

from types import SimpleNamespace

import torch

import sharpmax
from sharpmax.vllm.attention import SharpenedLayer, write_cache
from tests import stand_ins

PER_LAYER = sharpmax.PerLayer(
    (sharpmax.LogLinear(a=((0.3,), (-0.2,), (0.1,), (0.0,)), b=0.2, c=0.1), sharpmax.Constant(2.0))
)


def install(monkeypatch):
    """Put stand-ins where our code imports vLLM."""
    modules = {
        "vllm": {"__version__": "0.32.0"},
        "vllm.distributed": {"get_tensor_model_parallel_rank": lambda: 0},
        "vllm.model_executor": {},
        "vllm.model_executor.models": {},
        "vllm.model_executor.models.utils": {"extract_layer_index": lambda name: int(name.split(".")[2])},
    }
    stand_ins.install(monkeypatch, modules)


def config(card, *, layers=2, heads=4, model="models/tiny"):
    """Return what our code reads of vLLM's config."""
    text = SimpleNamespace(num_hidden_layers=layers, num_attention_heads=heads)
    model_config = SimpleNamespace(
        model=model, served_model_name=None, hf_text_config=text, runner_type="generate", use_mla=False,
        is_encoder_decoder=False, enforce_eager=False,
    )  # fmt: skip
    return SimpleNamespace(
        additional_config={"sharpmax": {"card": str(card), "any_model": True}},
        model_config=model_config,
        cache_config=SimpleNamespace(cache_dtype="auto"),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1),
        speculative_config=None,
    )


class Layer(SharpenedLayer):
    """One layer as vLLM makes it, with its cache."""

    def __init__(self, card, *, index=0, heads=4, key_heads=2, width=8, blocks=64, size=16, **changes):
        fields = {
            "num_heads": heads, "head_size": width, "scale": width**-0.5, "attn_type": "decoder", "sinks": None,
            "logits_soft_cap": 0, "alibi_slopes": None, "sliding_window": -1,
        }  # fmt: skip
        vars(self).update({**fields, **changes})
        self.layer_name, self.size = f"model.layers.{index}.attn", size
        self.cache = torch.full((blocks, key_heads, size, 2 * width), torch.nan)
        self.take_card(config(card, heads=heads))

    @torch.inference_mode()  # as vLLM calls it
    def step(self, query, key, value, tables, lengths, counts):
        """Write the new keys and attend: `counts` queries of each sequence, which has `lengths` keys with them."""
        slots = [
            tables[s][place // self.size] * self.size + place % self.size
            for s, (length, count) in enumerate(zip(lengths, counts, strict=True))
            for place in range(length - count, length)
        ]
        write_cache(self.cache, key, value, torch.tensor(slots, device=key.device))
        batch = metadata(tables, lengths, counts, self.cache.device)
        return self.attend(self, query, self.cache, batch, torch.full_like(query, torch.nan))


def metadata(tables, lengths, counts, device="cpu", **changes):
    """Return what vLLM tells a layer of a batch."""
    widest = max(map(len, tables))
    told = {
        "block_table": [[*table, *[0] * (widest - len(table))] for table in tables], "seq_lens": lengths,
        "query_start_loc": [sum(counts[:i]) for i in range(len(counts) + 1)],
    }  # fmt: skip
    told = {name: torch.tensor(numbers, dtype=torch.int32, device=device) for name, numbers in told.items()}
    most = {"max_seq_len": max(lengths), "max_query_len": max(counts)}
    return SimpleNamespace(**{"causal": True, "num_actual_tokens": sum(counts), **told, **most, **changes})
