"""A small config of any model type: the type's own defaults with widths, depths and vocabularies cut by their names."""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

from tests.hf.sharpen.survey.by_hand import CONFIGS

VOCABULARY, WIDTH, HEADS, LAYERS, POSITIONS, IMAGE, PATCH = 120, 32, 4, 2, 96, 32, 8

DEPTHS = (
    r"(\w+_)?num_(hidden_|encoder_|decoder_|\w+_)?(layers|blocks)|n_layers?|(\w+_)?depth|(en|de)coder_layers|layers"
    r"|(\w+_)?num_hidden_groups|num_(en|de)coder_blocks"
)
HEAD_COUNTS = r"(\w+_)?(num_)?(attention_)?heads|n_heads?|(\w+_)?num_(attention_)?heads|mamba_n_heads|(\w+_)?n_heads"
WIDTHS = (
    r"hidden_size|d_model|n_embd|dim|emb_dim|(\w+_)?embed_dim|(\w+_)?(hidden|embedding)_(size|dim)|projection_dim"
    r"|word_embed_proj_dim|(\w+_)?hidden_dim|out_hidden_size|output_hidden_size|\w+_hidden_size|(\w+_)?output_dim"
    r"|backbone_hidden_size|encoder_hidden_size|fusion_hidden_size|pooler_output_size|d_embed|fpn_hidden_size"
    r"|hidden_size_\w+|(\w+_)?output_channels|\w+_embed_dim|proj_dim|shared_\w*_dim|logit_\w*_dim"
)
INNER = (
    r"(\w+_)?intermediate_(size|dim)|(\w+_)?ffn_dim|d_ff|d_inner|n_inner|(\w+_)?mlp_dim|ffn_hidden_size|dim_feedforward"
)
FEW: dict[str, int] = {
    r"num_key_value_heads|(\w+_)?num_key_value_heads|n_kv_heads|multi_query_group_num|num_kv_heads": 2,
    r"head_dim|d_kv|dim_head|d_head|v_head_dim|qk_nope_head_dim|qk_rope_head_dim|\w+_head_dim": 8,
    r"rotary_dim": 8,
    r"mamba_d_head": 16,  # twice the width, by as many heads
    r"mamba_d_ssm": 64,
    r"kv_lora_rank|q_lora_rank|\w*lora_rank": 16,
    r"(moe_)?num_(local_)?experts|n_routed_experts|num_local_experts|moe_num_experts": 4,
    r"num_experts_per_tok|moe_topk|moe_k|top_k": 2,
    r"n_group|topk_group|first_k_dense_replace": 1,
    r"image_size|input_size|pretrain_image_size|spec_size": IMAGE,
    r"patch_size": PATCH,
    r"(num_mel_bins|n_mels|feature_size)": 16,
    r"(num_queries|num_query_tokens|num_latents|resampler_num_latents)": 6,
    r"codebook_size|num_embeddings|mamba_d_state|state_size": 32,
    r"context_size|prompt_length|block_size|mamba_chunk_size|chunk_size": 16,
    r"upsample_groups|mamba_n_groups|num_groups": 1,
    r"num_conv_pos_embeddings|num_conv_pos_embedding_groups": 4,
    r"sliding_window|attention_chunk_size|local_attention": 7,
    r"relative_attention_num_buckets": 8,
    r"max_position_embeddings|n_positions|max_(source|target)_positions|max_sequence_length|max_seq_len": POSITIONS,
    r"num_position_embeddings": 64,
    r"num_denoising": 0,
}
NOT_GIVEN = {"head_dim": WIDTH // HEADS, "num_key_value_heads": HEADS, "n_routed_experts": 4, "num_experts_per_tok": 2}
NOT_GIVEN |= {"n_group": 1, "topk_group": 1, "n_shared_experts": 1}
"""Fields that some configs leave to be derived, and some of these never derive."""
SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0, "mrope_section": [2, 1, 1]}


def small_config(model_type: str, *, shallow: bool = False) -> Any:
    """Return a small config of the model type; `shallow` keeps its widths and cuts depths and vocabularies only."""
    return small(CONFIG_MAPPING[model_type], shallow=shallow)


def small(kind: type[PreTrainedConfig], *, shallow: bool = False) -> Any:
    """Return a small config of the class, its sub-configs small too."""
    by_hand = CONFIGS.get(kind.model_type, {})
    try:
        default: Any = kind()
    except Exception:
        return kind(**by_hand)
    fields = {field.name: field for field in dataclasses.fields(kind) if not field.name.startswith("_")}
    chosen: dict[str, Any] = {}
    for name, field in fields.items():
        try:
            value = getattr(default, name, None)
        except Exception:  # one value per layer, and no common one
            value = field.default if isinstance(field.default, int) else None
        if isinstance(value, PreTrainedConfig):
            chosen[name] = small(type(value), shallow=shallow)
        elif value is None and not shallow:
            chosen |= {name: NOT_GIVEN[name]} if name in NOT_GIVEN else {}
        elif (cut := shrink(name, value, shallow)) is not None and cut != value:
            chosen[name] = cut
    depth = next((name for name in ("num_hidden_layers", "n_layer", "num_layers") if name in chosen), None)
    kinds = getattr(default, "layer_types", None) if "layer_types" in fields else None
    if isinstance(kinds, list) and depth and len(kinds) > chosen[depth]:
        each = list(dict.fromkeys(kinds))  # one layer of each kind at least
        chosen["layer_types"] = (each * LAYERS)[: max(LAYERS, len(each))]
        chosen[depth] = len(chosen["layer_types"])
    rope = getattr(default, "rope_parameters", None) or {}
    by_default = rope.get("rope_type", "default") == "default"
    if "rope_parameters" in fields and by_default and not shallow and _turns_in_sections(kind):
        nested = {name: SECTIONS for name, value in rope.items() if isinstance(value, dict)}  # per kind of layer
        chosen["rope_parameters"] = nested or SECTIONS
    return kind(**{**chosen, **by_hand})


def _turns_in_sections(kind: type[PreTrainedConfig]) -> bool:
    """Tell whether a family's rotary embedding is of three axes, in sections that must fill half a head."""
    source = Path(inspect.getfile(kind))
    modeling = source.with_name(source.name.replace("configuration_", "modeling_"))
    return modeling.exists() and "mrope_section" in modeling.read_text(encoding="utf-8")


def shrink(name: str, value: Any, shallow: bool) -> Any:
    """Return a small value for a field of that name; None to leave it as it is."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, float):
        return 0.0 if re.search("drop|layerdrop", name) and "norm" not in name else None
    if isinstance(value, int):
        if re.fullmatch(r"\w+_(token_id|token_index|id|index)|pad_token_id", name):
            return value % 60 + 30 if value >= VOCABULARY else None
        if re.fullmatch(r"(\w+_)?vocab_size(_\w+)?", name):
            return min(value, VOCABULARY)
        if re.fullmatch(DEPTHS, name):
            return min(value, LAYERS)
        if shallow and not re.search("expert|image_size", name):
            return None
        if re.fullmatch(HEAD_COUNTS, name):
            return min(value, HEADS)
        if re.fullmatch(INNER, name):
            return min(value, 48)
        if re.fullmatch(WIDTHS, name):
            return min(value, WIDTH) if value else None
        for pattern, few in FEW.items():
            if re.fullmatch(pattern, name):
                return min(value, few)
        return None
    if isinstance(value, list | tuple) and value and all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        if name in ("depths", "depth", "num_hidden_layers", "num_layers"):
            return type(value)(min(v, LAYERS) for v in value)
        if name in ("image_size", "input_size"):
            return type(value)(IMAGE for _ in value)
        if shallow:
            return None
        if name in ("hidden_sizes", "embed_dims", "embed_dim", "encoder_hidden_sizes", "neck_hidden_sizes", "conv_dim"):
            return type(value)(16 for _ in value)
    return None
