"""A small model over rows with random weights."""

import torch

from sharpmax.models.tables.row_transformer import RowTransformer


def small_model(features: int = 5, classes: int = 4, width: int = 16, heads: int = 2, layers: int = 2):
    """Return it; its weights are its own, whatever else draws."""
    generator = torch.Generator().manual_seed(0)

    def linear(name: str, out: int, inside: int) -> dict[str, torch.Tensor]:
        return {
            f"{name}.weight": torch.randn(out, inside, generator=generator) * inside**-0.5,
            f"{name}.bias": torch.randn(out, generator=generator) * 0.1,
        }

    weights = {**linear("encoder", width, features), **linear("y_encoder", width, 1)}
    for index in range(layers):
        of = f"transformer_encoder.layers.{index}."
        packed = linear("in_proj", 3 * width, width)
        weights |= {f"{of}self_attn.{name.replace('.', '_')}": w for name, w in packed.items()}
        weights |= linear(f"{of}self_attn.out_proj", width, width)
        weights |= linear(f"{of}linear1", 2 * width, width) | linear(f"{of}linear2", width, 2 * width)
        for norm in ("norm1", "norm2"):
            weights[f"{of}{norm}.weight"] = 1 + 0.1 * torch.randn(width, generator=generator)
            weights[f"{of}{norm}.bias"] = 0.1 * torch.randn(width, generator=generator)
    weights |= linear("decoder.0", 2 * width, width) | linear("decoder.2", classes, 2 * width)
    return RowTransformer(weights, heads)
