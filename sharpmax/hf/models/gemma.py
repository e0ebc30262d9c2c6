"""Gemma at the paper's architecture in sizes that train here, from random weights, reading characters.

The paper fine-tunes Gemma 2B: multi-query attention of head width 256, GeGLU, RMSNorm, rotary positions, tied
embeddings. These are real `GemmaForCausalLM` (and `Gemma2ForCausalLM`, which caps its logits and attends to a window in
every other layer) with fewer and narrower layers. Those who have the weights name `google/gemma-2b` instead.
"""

from dataclasses import dataclass
from typing import Any

from sharpmax.extras import extra
from sharpmax.hf.models.load import LoadedModel
from sharpmax.torch.device import must_run_on

with extra("hf"):
    import tokenizers
    import torch
    import transformers

CHARACTERS = "\n abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:;,.|()[]<>{}+-*/=?!'\"#%&@^~`$\\"
UNKNOWN, END = "<unk>", "<eos>"


@dataclass(frozen=True)
class Size:
    """One size: the fields of the config that differ."""

    about: str
    config: dict[str, Any]
    version: int = 1


SIZES = {
    "gemma-tiny": Size(
        "2 layers of width 64, 2 heads of width 32: for tests on a processor",
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 32, "intermediate_size": 256},
    ),
    "gemma-small": Size(
        "8 layers of width 512, 8 heads of width 256 on one key-value head: 42 M",
        {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "head_dim": 256,
         "intermediate_size": 2048},
    ),
    "gemma2-tiny": Size(
        "gemma-tiny with the second version's soft-capping and window",
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 32, "intermediate_size": 256,
         "query_pre_attn_scalar": 32, "sliding_window": 512},
        version=2,
    ),
}  # fmt: skip


def gemma(name: str, *, seed: int = 0, device: str | None = None) -> LoadedModel:
    """Return a Gemma of one of the `SIZES`, with random weights from the seed."""
    if name not in SIZES:
        raise ValueError(f"unknown size {name!r}; there are: {', '.join(SIZES)}")
    must_run_on(device or "cpu")
    size = SIZES[name]
    tokenizer = character_tokenizer()
    kind, config = (
        (transformers.GemmaForCausalLM, transformers.GemmaConfig),
        (transformers.Gemma2ForCausalLM, transformers.Gemma2Config),
    )[size.version - 1]
    ends = {f"{role}_token_id": tokenizer.convert_tokens_to_ids(END) for role in ("eos", "bos", "pad")}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(
            config(
                **{"num_key_value_heads": 1, "max_position_embeddings": 8192, **size.config},
                vocab_size=len(tokenizer),
                **ends,
            )
        )
    return LoadedModel(name, model.to(device or "cpu").eval(), tokenizer)


def character_tokenizer() -> Any:
    """Return a tokenizer of one token a character: what CLRS-Text writes, and the rest of ASCII as it is met."""
    words = {word: index for index, word in enumerate([UNKNOWN, END, *CHARACTERS])}
    by_character = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token=UNKNOWN))
    by_character.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    by_character.decoder = tokenizers.decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=by_character, unk_token=UNKNOWN, eos_token=END, pad_token=END, model_max_length=8192
    )
