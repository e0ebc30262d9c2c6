"""Inputs for any model, from the names of its forward's arguments."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.hf.sharpen.survey.by_hand import INPUTS

LENGTH, BATCH = 12, 2


def draw(seed: int) -> torch.Generator:
    """Return a generator of that seed."""
    return torch.Generator().manual_seed(seed)


def ids_for(config: Any, length: int = LENGTH, seed: int = 0) -> Tensor:
    """Return ids that are no marker: those of small configs lie at 30 and above, or below 5."""
    vocabulary = getattr(config.get_text_config(), "vocab_size", None) or getattr(config, "vocab_size", None) or 99
    return torch.randint(5, min(30, int(vocabulary)), (BATCH, length), generator=draw(seed))


def image_for(config: Any, seed: int = 0) -> Tensor:
    """Return images as large as the config says."""
    for of in (config, *(getattr(config, n, None) for n in ("vision_config", "backbone_config", "encoder"))):
        size, channels = getattr(of, "image_size", None), getattr(of, "num_channels", None)
        if size is not None:
            break
    sizes = tuple(size) if isinstance(size, list | tuple) else (size or 64,) * 2
    return torch.randn(BATCH, channels if isinstance(channels, int) else 3, *sizes, generator=draw(seed))


def audio_for(config: Any, name: str, seed: int = 0) -> Tensor:
    """Return a spectrogram (batch, mel bins, frames), or a waveform."""
    if name == "input_values":
        return torch.randn(BATCH, 2048, generator=draw(seed))
    parts = [config, *(getattr(config, part, None) for part in ("audio_config", "encoder_config", "speech_config"))]
    names = ("num_mel_bins", "feature_size", "input_feat_per_channel", "feature_projection_input_dim", "input_dim")
    bins = next((b for of in parts for n in names if isinstance(b := getattr(of, n, None), int)), 16)
    frames = 2 * next((p for of in parts if (p := getattr(of, "max_source_positions", None))), 32)
    return torch.randn(BATCH, bins, frames, generator=draw(seed))


def patches_for(config: Any, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return the patches of two images of 4 x 4, flat and end to end, and their grids (frames, height, width)."""
    of = getattr(config, "vision_config", config)
    channels = next((c for n in ("in_channels", "in_chans", "num_channels") if (c := getattr(of, n, None))), 3)
    numbers = channels * of.patch_size**2 * (getattr(of, "temporal_patch_size", None) or 1)
    return torch.randn(BATCH * 16, numbers, generator=draw(seed)), torch.tensor([[1, 4, 4]] * BATCH)


def inputs_for(model: Any, seed: int = 0) -> list[dict[str, Any]]:
    """Return sets of arguments of the model's forward, the likeliest first."""
    config, takes = model.config, inspect.signature(model.forward).parameters
    if config.model_type in INPUTS:
        return [INPUTS[config.model_type](config)]
    needed = [n for n, p in takes.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if "grid_thw" in takes:
        patches, grid = patches_for(config, seed)
        return [{needed[0] if needed and needed[0] != "grid_thw" else "pixel_values": patches, "grid_thw": grid}]
    width = next(
        (w for n in ("hidden_size", "d_model", "dim", "n_embd") if isinstance(w := getattr(config, n, None), int)), 32
    )
    known: dict[str, Callable[[], Any]] = {
        "input_ids": lambda: ids_for(config, seed=seed),
        "decoder_input_ids": lambda: ids_for(config, LENGTH - 3, seed + 1),
        "qformer_input_ids": lambda: ids_for(config, seed=seed),
        "pixel_values": lambda: image_for(config, seed),
        "pixel_values_videos": lambda: image_for(config, seed)[:, None].repeat(1, 2, 1, 1, 1),
        "input_values": lambda: audio_for(config, "input_values", seed),
        "input_features": lambda: audio_for(config, "input_features", seed),
        "input_features_mask": lambda: torch.ones(BATCH, 64, dtype=torch.long),
        "inputs_embeds": lambda: torch.randn(BATCH, LENGTH, width, generator=draw(seed)),
        "query_embeds": lambda: torch.randn(BATCH, LENGTH, width, generator=draw(seed)),
        "hidden_states": lambda: torch.randn(BATCH, LENGTH, width, generator=draw(seed)),
        "bbox": lambda: torch.tensor([1, 2, 5, 7]).expand(BATCH, LENGTH, 4),
    }
    names = [n for n in needed if n in known]
    main = getattr(model, "main_input_name", "input_ids")
    names += [n for n in (main, "input_ids", "inputs_embeds", "hidden_states") if n in takes and n in known][
        : not names
    ]
    if "decoder_input_ids" in takes and getattr(config, "is_encoder_decoder", False):
        names.append("decoder_input_ids")
    tries = [names]
    tries += [[*names, n] for n in ("input_ids", "pixel_values") if n in takes and n not in names]
    made = [{name: known[name]() for name in chosen} for chosen in tries]
    if type(model).__name__.endswith("ForMultipleChoice"):
        made = [{name: value[:, None].repeat_interleave(2, 1) for name, value in one.items()} for one in made]
    if "input_features" in names:  # some put the frames first
        made.append({**made[0], "input_features": made[0]["input_features"].transpose(1, 2).contiguous()})
    if "pixel_values" in names:  # some take films
        frames = getattr(config, "num_frames", None) or getattr(config, "frames_per_clip", None) or 2
        film = made[0]["pixel_values"][:, None].repeat(1, frames, 1, 1, 1)
        made.append({**made[0], "pixel_values": film})
    if "input_values" in names:  # some take channels
        made.append({**made[0], "input_values": made[0]["input_values"][:, None]})
    return made
