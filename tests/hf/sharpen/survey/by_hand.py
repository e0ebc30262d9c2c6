"""What the automatic way gets wrong: fields of small configs, and inputs, by model type."""

from collections.abc import Callable
from typing import Any

import torch

RESNET: dict[str, Any] = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1],
    "layer_type": "basic", "out_features": ["stage2", "stage3", "stage4"],
}  # fmt: skip
DETR: dict[str, Any] = {
    "use_timm_backbone": False,
    "backbone": None,
    "backbone_config": RESNET,
    "use_pretrained_backbone": False,
}
SERIES: dict[str, Any] = {
    "prediction_length": 4, "context_length": 8, "lags_sequence": [1], "num_time_features": 1, "d_model": 16,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "dropout": 0.0,
}  # fmt: skip
SWIN: dict[str, Any] = {
    "image_size": 64, "patch_size": 2, "window_size": 4,
    "embed_dim": 16, "depths": [2, 1, 1, 1], "num_heads": [2, 2, 4, 4],
}  # fmt: skip
SECTIONS: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
ALTERNATING = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}

CONFIGS: dict[str, dict[str, Any]] = {
    "align": {"projection_dim": 640},
    "autoformer": {**SERIES, "label_length": 4, "moving_average": 3},
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 100},
    "chameleon": {"vocabulary_map": {"<image>": 31}},
    "cohere_compass_text": {**ALTERNATING, "rope_parameters": dict.fromkeys(ALTERNATING["layer_types"], SECTIONS)},
    "conditional_detr": DETR,
    "dab-detr": DETR,
    "dbrx": {
        "attn_config": {"kv_n_heads": 2},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 48, "moe_top_k": 2},
    },
    "deformable_detr": DETR,
    "detr": DETR,
    "donut-swin": SWIN,
    "ernie4_5_vl_moe_text": {"rope_parameters": {**SECTIONS, "mrope_section": [1, 1, 2]}},
    "esm": {"vocab_size": 40, "pad_token_id": 1, "mask_token_id": 3, "position_embedding_type": "rotary"},
    "gemma3n_text": {**ALTERNATING, "num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.95, 0.0]},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]},
    "informer": {**SERIES, "attention_type": "full"},
    "lfm2_moe": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "maskformer-swin": SWIN,
    "perceiver": {"num_latents": 8, "d_latents": 32, "d_model": 32, "num_blocks": 1, "num_self_attends_per_block": 2},
    "swin": SWIN,
    "swinv2": SWIN,
    "swin2sr": {**SWIN, "image_size": 16, "patch_size": 1, "depths": [2], "num_heads": [2]},
    "table-transformer": DETR,
    "time_series_transformer": SERIES,
    "xmod": {"default_language": "en_XX"},
}
"""Fields of a type's small config, over what is derived from their names."""


def _series(config: Any) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(0)
    past = config.context_length + max(config.lags_sequence)
    return {
        "past_values": torch.randn(2, past, generator=draw),
        "past_time_features": torch.randn(2, past, 1, generator=draw),
        "past_observed_mask": torch.ones(2, past),
        "future_values": torch.randn(2, config.prediction_length, generator=draw),
        "future_time_features": torch.randn(2, config.prediction_length, 1, generator=draw),
    }


def _patches(config: Any) -> dict[str, Any]:
    numbers = getattr(config, "vision_config", config).patch_size ** 2 * 3
    return {
        "pixel_values": torch.randn(2, 16, numbers, generator=torch.Generator().manual_seed(0)),
        "pixel_attention_mask": torch.ones(2, 16, dtype=torch.long),
        "spatial_shapes": torch.tensor([[4, 4], [4, 4]]),
    }


def _flattened(config: Any) -> dict[str, Any]:
    """Patches with their row and column in front, as Pix2Struct takes them."""
    numbers = getattr(config, "vision_config", config).patch_embed_hidden_size
    patches = torch.randn(2, 16, numbers, generator=torch.Generator().manual_seed(0))
    place = torch.cartesian_prod(torch.arange(1.0, 5.0), torch.arange(1.0, 5.0)).expand(2, -1, -1)
    words = (
        {}
        if config.model_type == "pix2struct_vision_model"
        else {"decoder_input_ids": torch.arange(5, 14).expand(2, -1)}
    )
    return {"flattened_patches": torch.cat([place, patches], -1), **words}


def _channels(config: Any) -> dict[str, Any]:
    shape = 2, config.context_length, config.num_input_channels
    return {"past_values": torch.randn(shape, generator=torch.Generator().manual_seed(0))}


INPUTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "autoformer": _series,
    "informer": _series,
    "patchtst": _channels,
    "pix2struct": _flattened,
    "pix2struct_vision_model": _flattened,
    "siglip2_vision_model": _patches,
    "time_series_transformer": _series,
}
"""A forward's arguments from the config, where their names do not tell."""

NOT_TRIED = {"sam3_video": "with its own image size it takes half a minute"}
"""Types that the automatic way does not cut, and that take too long."""
