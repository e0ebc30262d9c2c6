"""How much each head's logits vary under its own weights, Var_p(e): how strongly its entropy answers to beta."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

import sharpmax.torch
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.sharpen.switch import sharpen


@torch.no_grad()
def mean_variance(loaded: LoadedModel, text: str, length: int, *, rows: int = 32) -> np.ndarray:
    """Return the mean variance over the last `rows` rows of a text of `length` tokens, (layer, head)."""
    found: dict[int, np.ndarray] = {}

    def probe(layer: int, query: Tensor, key: Tensor, options: dict[str, Any]) -> None:
        kept = {name: options.get(name) for name in ("scale", "softcap", "sinks")}
        last = slice(max(0, query.shape[2] - rows), None)
        for name in ("mask", "bias"):
            part = options.get(name)
            kept[name] = part if part is None or part.shape[-2] == 1 else part[..., last, :]
        arguments: dict[str, Any] = {**kept, "is_causal": options.get("is_causal", False)}
        extra = frozenset({"variance"})
        stats = sharpmax.torch.row_stats(query[:, :, last], key, extra=extra, **arguments)
        found[layer] = stats.variance.mean((0, 2)).cpu().double().numpy()

    ids = loaded.tokens(text)[:, :length]
    with sharpen(loaded.model, probe=probe):
        loaded.model.base_model(input_ids=ids)
    return np.stack([found[layer] for layer in sorted(found)])
