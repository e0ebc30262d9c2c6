"""How far a head's queries and keys can reach, read off a transformers model: norm layer, projections, rotary scale.

Known are models whose queries and keys stand behind one norm layer: the block's own (pre-norm: Llama and its like,
GPT-2, GPT-NeoX, OPT, ModernBERT, ESM, vision Transformers) or that of the block before (post-norm: BERT and its like).
What is not known is refused: a wrong norm layer would be a false proof.
"""

import re
from typing import Any

import numpy as np
from torch import nn

from sharpmax.dispersion.certificates import spread_from_reach
from sharpmax.hf.diagnosis.affine import Affine, Norm, affine_of, norm_of
from sharpmax.hf.sharpen.layers import AttentionLayer, attention_layers

PRE_NORM = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "smollm3", "gpt_oss", "phi3"), "input_layernorm"),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "gpt_neox"), "input_layernorm"),
    **dict.fromkeys(("clip_text_model", "clip_vision_model"), "layer_norm1"),
    **dict.fromkeys(("siglip_text_model", "siglip_vision_model"), "layer_norm1"),
    **dict.fromkeys(("vit", "deit"), "layernorm_before"),
    "dinov2": "norm1",
    "esm": "LayerNorm",
    "gpt2": "ln_1",
    "modernbert": "attn_norm",
    "opt": "self_attn_layer_norm",
}
"""The norm layer of each family that stands beside its attention."""

POST_NORM = {
    **dict.fromkeys(("bert", "roberta", "electra"), "output.LayerNorm"),
    "distilbert": "output_layer_norm",
    "albert": "full_layer_layer_norm",
}
"""The norm layer of each family that ends a block."""


def proved_spreads(model: nn.Module) -> np.ndarray:
    """Return the proved bound on the spread of every head's logits, (layer, head); where heads are fewer, NaN.

    Raises:
        NotImplementedError: a family whose norm layers and projections are not known here.
    """
    rows = [spreads for layer in attention_layers(model) for spreads in _spreads(model, layer)]
    proved = np.full((len(rows), max(map(len, rows))), np.nan)
    for i, row in enumerate(rows):
        proved[i, : len(row)] = row
    return proved


def _spreads(model: nn.Module, layer: AttentionLayer) -> list[list[float]]:
    """Return the bounds of every layer that a module runs as, one number per head."""
    family = _known_family(layer)
    module: Any = layer.module
    query, key = _query_and_key(module)
    scale, rotary = _scale(module, family), _rotary_scale(model)
    softcap = getattr(module, "attn_logit_softcapping", None)
    bounds = []
    for norm, between in _in_front(model, layer, family):
        q, k = (
            [rotary * reach for reach in _reaches(norm, side if between is None else side.after(between), module, name)]
            for side, name in ((query, "q_norm"), (key, "k_norm"))
        )
        group = len(q) // len(k)
        bounds.append([spread_from_reach(q[i], k[i // group], scale, softcap=softcap) for i in range(len(q))])
    return bounds


def _reaches(norm: Norm, side: Affine, module: Any, own_norm: str) -> list[float]:
    heads = side.heads(_width(module))
    if (own := getattr(module, own_norm, None)) is not None:  # of each head: what is in front matters no more
        return [norm_of(own).length] * len(heads)
    return [norm.behind(head) for head in heads]


def _known_family(layer: AttentionLayer) -> str:
    module: Any = layer.module
    config: Any = getattr(module, "config", None)
    family: str = getattr(config, "model_type", type(module).__name__)
    if family not in PRE_NORM | POST_NORM:
        known = ", ".join(sorted(PRE_NORM | POST_NORM))
        raise NotImplementedError(f"no certificate for {family}: its norm layers are not known here; known are {known}")
    if "cross" in layer.name.lower():
        raise NotImplementedError(f"no certificate for {layer.name}: its keys come from another model")
    if family == "opt" and not config.do_layer_norm_before:
        raise NotImplementedError("no certificate for an opt that normalises after attention: nothing bounds its input")
    if family == "albert" and (config.num_hidden_groups, config.inner_group_num) != (1, 1):
        raise NotImplementedError("no certificate for an albert of several blocks: only of one that runs many times")
    return family


def _in_front(model: nn.Module, layer: AttentionLayer, family: str) -> list[tuple[Norm, Affine | None]]:
    """Return the norm layer in front of every layer that a module runs as, and the linear map between, if any."""
    if family in PRE_NORM:
        block: Any = model.get_submodule(layer.name.rpartition(".")[0])
        beside = getattr(block, PRE_NORM[family])
        if isinstance(beside, nn.Identity):  # of ModernBERT's first block: its embeddings are normalised
            beside = model.get_submodule(f"{layer.name.partition('layers.')[0]}embeddings.norm")
        return [(norm_of(beside), None)]
    base, stack, number, block_name = _place(layer.name)
    embeddings: Any = model.get_submodule(base.rstrip("."))
    first = norm_of(embeddings.embeddings.LayerNorm)
    if family == "albert":  # its one block runs first on embeddings that a linear map widens, then on its own output
        later = norm_of(model.get_submodule(f"{block_name}.{POST_NORM[family]}"))
        return [(first, affine_of(embeddings.encoder.embedding_hidden_mapping_in)), *[(later, None)] * (layer.runs - 1)]
    if number == 0:
        widening = getattr(embeddings, "embeddings_project", None)  # ELECTRA's
        return [(first, None if widening is None else affine_of(widening))]
    return [(norm_of(model.get_submodule(f"{base}{stack}.{number - 1}.{POST_NORM[family]}")), None)]


def _place(name: str) -> tuple[str, str, int, str]:
    """Return where a post-norm model's attention stands: base model, its stack of blocks, number and name of the block.

    >>> _place("bert.encoder.layer.3.attention.self")
    ('bert.', 'encoder.layer', 3, 'bert.encoder.layer.3')
    """
    found = re.match(r"(.*?)((?:encoder|transformer)\.(?:layer|albert_layer_groups\.0\.albert_layers))\.(\d+)", name)
    if found is None:
        raise NotImplementedError(f"no certificate for {name}: it does not stand where its family's attention does")
    return found[1], found[2], int(found[3]), found[0]


def _query_and_key(module: Any) -> tuple[Affine, Affine]:
    """Return the projections to all queries and to all keys, head after head, however the family stores them."""
    for query, key in (("q_proj", "k_proj"), ("query", "key"), ("q_lin", "k_lin")):
        if hasattr(module, query):
            return affine_of(getattr(module, query)), affine_of(getattr(module, key))
    width = _width(module)
    if hasattr(module, "qkv_proj"):  # Phi-3: fewer keys than queries
        fused, queries = affine_of(module.qkv_proj), module.config.num_attention_heads * width
        return fused.rows(slice(queries)), fused.rows(slice(queries, queries + module.num_key_value_heads * width))
    if hasattr(module, "query_key_value"):  # GPT-NeoX: query, key and value of each head side by side
        fused = affine_of(module.query_key_value)
        index = np.arange(len(fused.bias)).reshape(-1, 3, width)
        return fused.rows(index[:, 0].ravel()), fused.rows(index[:, 1].ravel())
    fused = affine_of(module.Wqkv if hasattr(module, "Wqkv") else module.c_attn)
    third = len(fused.bias) // 3
    return fused.rows(slice(third)), fused.rows(slice(third, 2 * third))


def _width(module: Any) -> int:
    """Return the width of a head."""
    names = ("head_dim", "attention_head_size", "head_size")
    return int(next(getattr(module, name) for name in names if hasattr(module, name)))


def _scale(module: Any, family: str) -> float:
    """Return what the products of queries and keys are multiplied by."""
    if family == "gpt2":
        scale = _width(module) ** -0.5 if module.config.scale_attn_weights else 1.0
        return float(scale / (module.layer_idx + 1 if module.config.scale_attn_by_inverse_layer_idx else 1))
    if family in ("esm", "modernbert"):  # they scale by themselves
        return float(_width(module) ** -0.5)
    return float(module.scale if hasattr(module, "scale") else module.scaling)


def _rotary_scale(model: nn.Module) -> float:
    """Return what rotary embeddings multiply lengths by: 1, or more under YaRN and LongRoPE.

    Gemma 3 and ModernBERT keep one for each kind of layer (`full_attention_attention_scaling`): the largest counts.
    """
    scales = [s for m in model.modules() for name, s in vars(m).items() if name.endswith("attention_scaling")]
    return float(max([1.0, *(s for s in scales if isinstance(s, float | int))]))
