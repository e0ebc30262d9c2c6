"""What the automatic way gets wrong: fields of small configs, and inputs, by model type."""

from collections.abc import Callable
from typing import Any

import torch

RESNET: dict[str, Any] = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1],
    "layer_type": "basic", "out_features": ["stage2", "stage3", "stage4"],
}  # fmt: skip
DETR: dict[str, Any] = {"use_timm_backbone": False, "backbone": None, "backbone_config": RESNET, "use_pretrained_backbone": False}
SERIES: dict[str, Any] = {
    "prediction_length": 4, "context_length": 8, "lags_sequence": [1], "num_time_features": 1, "d_model": 16,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "dropout": 0.0,
}  # fmt: skip
SWIN: dict[str, Any] = {
    "image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
}  # fmt: skip

MAMBA: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 8}

CONFIGS: dict[str, dict[str, Any]] = {
    "autoformer": {**SERIES, "label_length": 4, "moving_average": 3},
    "bamba": MAMBA,
    "blt": {"encoder_hash_byte_group_vocab": 100},
    "conditional_detr": DETR,
    "dab-detr": DETR,
    "deformable_detr": DETR,
    "detr": DETR,
    "donut-swin": SWIN,
    "falcon_h1": MAMBA,
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "informer": {**SERIES, "attention_type": "full"},
    "maskformer-swin": SWIN,
    "swin": SWIN,
    "swinv2": SWIN,
    "swin2sr": {**SWIN, "image_size": 16, "patch_size": 1, "window_size": 4},
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


INPUTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "autoformer": _series,
    "informer": _series,
    "siglip2_vision_model": _patches,
    "time_series_transformer": _series,
}
"""A forward's arguments from the config, where their names do not tell."""
