"""Norm and linear layers of a model as arrays, in float64: what a certificate is computed from.

A layer that is not a plain `nn.Linear` (GPT-2's, one with a LoRA beside it) is asked what it does to each unit vector.
"""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from sharpmax.dispersion.certificates import reach


@dataclass(frozen=True)
class Affine:
    """x -> weight·x + bias."""

    weight: np.ndarray
    bias: np.ndarray

    def after(self, first: "Affine") -> "Affine":
        """Return this map applied to what `first` gives."""
        return Affine(self.weight @ first.weight, self.weight @ first.bias + self.bias)

    def rows(self, index: Any) -> "Affine":
        """Return the map to some of the outputs."""
        return Affine(self.weight[index], self.bias[index])

    def heads(self, width: int) -> list["Affine"]:
        """Return the maps to each head of `width` outputs."""
        return [self.rows(slice(start, start + width)) for start in range(0, len(self.bias), width)]


@dataclass(frozen=True)
class Norm:
    """A norm layer as an affine map of a vector of length at most √d: gain, bias, and whether it centres."""

    gain: np.ndarray
    bias: np.ndarray
    centred: bool

    @property
    def length(self) -> float:
        """The longest vector it can give."""
        return float(np.max(np.abs(self.gain)) * np.sqrt(self.gain.size) + np.linalg.norm(self.bias))

    def behind(self, projection: Affine) -> float:
        """Return how far a projection of what it gives can reach."""
        return reach(projection.weight, gain=self.gain, centred=self.centred, norm_bias=self.bias, bias=projection.bias)


def affine_of(module: Any) -> Affine:
    """Return a linear layer's map, with whatever was put beside it."""
    if type(module) is nn.Linear:
        weight = array(module.weight)
        return Affine(weight, np.zeros(len(weight)) if module.bias is None else array(module.bias))
    exact = copy.deepcopy(module).double().eval()
    base = getattr(module, "base_layer", module)  # a LoRA's
    width = base.in_features if hasattr(base, "in_features") else base.weight.shape[0]
    unit = torch.eye(width, dtype=torch.float64, device=base.weight.device)
    with torch.no_grad():
        bias = exact(torch.zeros_like(unit[:1]))[0]
        return Affine(array((exact(unit) - bias).T), array(bias))


def norm_of(module: Any) -> Norm:
    """Return a LayerNorm's or RMSNorm's gain and bias."""
    if isinstance(module, nn.LayerNorm):
        gain = np.ones(module.normalized_shape) if module.weight is None else array(module.weight)
        return Norm(gain, np.zeros(1) if module.bias is None else array(module.bias), centred=True)
    # An RMSNorm of ones is its gain (Gemma's is 1 + weight), a hair less for epsilon.
    ones = torch.ones(1, 1, module.weight.numel(), device=module.weight.device, dtype=torch.float32)
    epsilon = float(getattr(module, "variance_epsilon", getattr(module, "eps", 0.0)))
    with torch.no_grad():
        gain = array(module(ones)[0, 0]) * np.sqrt(1 + epsilon)
    return Norm(gain, np.zeros(1), centred=False)


def array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's numbers in float64."""
    return np.asarray(tensor.detach().double().cpu().numpy())
