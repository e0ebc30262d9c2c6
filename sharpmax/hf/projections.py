"""How far a head's queries and keys can reach, read off a transformers model: norm layer, projections, rotary scale.

Known are the pre-norm blocks of the Llama family (Llama, Mistral, Qwen 2 and 3, Gemma 1 to 3, SmolLM3, gpt-oss), GPT-2,
and the post-norm blocks of BERT and ALBERT. What is not known is refused: a wrong norm layer would be a false proof.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from sharpmax.diagnose.certificates import reach, spread_from_reach
from sharpmax.hf.layers import AttentionLayer, attention_layers

PRE_NORM = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "smollm3", "gpt_oss")


@dataclass(frozen=True)
class Norm:
    """A norm layer as an affine map of a vector of length at most √d: gain, bias, and whether it centres."""

    gain: np.ndarray
    bias: np.ndarray
    centred: bool

    def behind(self, weight: np.ndarray, bias: np.ndarray | None) -> float:
        """Return how far `weight·norm(x) + bias` can reach."""
        return reach(
            weight, gain=self.gain, centred=self.centred, norm_bias=self.bias, bias=0.0 if bias is None else bias
        )


def proved_spreads(model: nn.Module) -> np.ndarray:
    """Return the proved bound on the spread of every head's logits, (layer, head).

    Raises:
        NotImplementedError: a family whose norm layers and projections are not known here.
    """
    rows = [spreads for layer in attention_layers(model) for spreads in _spreads(model, layer)]
    return np.asarray(rows, dtype=np.float64)


def _spreads(model: nn.Module, layer: AttentionLayer) -> list[list[float]]:
    module: Any = layer.module
    family = module.config.model_type
    if family in PRE_NORM:
        return [_pre_norm(model, layer)]
    if family == "gpt2" and not module.is_cross_attention:
        return [_gpt2(model, layer)]
    if family == "bert":
        return [_bert(model, layer)]
    if family == "albert":
        return _albert(model, layer)
    known = ", ".join((*PRE_NORM, "gpt2", "bert", "albert"))
    raise NotImplementedError(f"no certificate for {family}: its norm layers are not known here; known are {known}")


def _pre_norm(model: nn.Module, layer: AttentionLayer) -> list[float]:
    module: Any = layer.module
    block: Any = model.get_submodule(layer.name.rpartition(".")[0])
    norm = _norm(block.input_layernorm)
    rotary = _rotary_scale(model)
    reaches = {}
    for side in ("q", "k"):
        projection = getattr(module, f"{side}_proj")
        if (own := getattr(module, f"{side}_norm", None)) is not None:
            after = _norm(own)  # of each head, after the projection: the projection no longer matters
            length = float(np.max(np.abs(after.gain)) * np.sqrt(after.gain.size) + np.linalg.norm(after.bias))
            reaches[side] = [length * rotary] * (projection.out_features // module.head_dim)
        else:
            heads = zip(*_heads(projection.weight, projection.bias, module.head_dim), strict=True)
            reaches[side] = [norm.behind(w, b) * rotary for w, b in heads]
    cap = getattr(module, "attn_logit_softcapping", None)
    return _paired(reaches["q"], reaches["k"], float(module.scaling), cap)


def _gpt2(model: nn.Module, layer: AttentionLayer) -> list[float]:
    module: Any = layer.module
    block: Any = model.get_submodule(layer.name.rpartition(".")[0])
    norm = _norm(block.ln_1)
    width = module.embed_dim
    weight, bias = module.c_attn.weight.T, module.c_attn.bias  # stored as (in, out)
    reaches = [
        [norm.behind(w, b) for w, b in zip(*_heads(weight[part], bias[part], module.head_dim), strict=True)]
        for part in (slice(0, width), slice(width, 2 * width))
    ]
    scale = module.head_dim**-0.5 if module.config.scale_attn_weights else 1.0
    if module.config.scale_attn_by_inverse_layer_idx:
        scale /= module.layer_idx + 1
    return _paired(reaches[0], reaches[1], scale, None)


def _bert(model: nn.Module, layer: AttentionLayer) -> list[float]:
    module: Any = layer.module
    path, _, _ = layer.name.partition("layer.")
    number = int(layer.name.partition("layer.")[2].split(".")[0])
    before = (
        f"{path}layer.{number - 1}.output.LayerNorm"
        if number
        else f"{path.rpartition('encoder.')[0]}embeddings.LayerNorm"
    )
    return _of_linear(_norm(model.get_submodule(before)), module, module.attention_head_size)


def _albert(model: nn.Module, layer: AttentionLayer) -> list[list[float]]:
    """Its one block runs many times: first on embeddings that a linear map widens, then on its own norm's output."""
    module: Any = layer.module
    path = layer.name.partition("encoder.")[0]
    widening: Any = model.get_submodule(f"{path}encoder.embedding_hidden_mapping_in")
    embeddings = _norm(model.get_submodule(f"{path}embeddings.LayerNorm"))
    weight, bias = _array(widening.weight), _array(widening.bias)
    first = []
    for side in (module.query, module.key):
        heads = zip(*_heads(side.weight, side.bias, module.attention_head_size), strict=True)
        first.append([embeddings.behind(w @ weight, w @ bias + b) for w, b in heads])
    block = layer.name.partition(".attention")[0]
    later = _of_linear(_norm(model.get_submodule(f"{block}.full_layer_layer_norm")), module, module.attention_head_size)
    return [_paired(first[0], first[1], float(module.scaling), None)] + [later] * (layer.runs - 1)


def _of_linear(norm: Norm, module: Any, width: int) -> list[float]:
    reaches = [
        [norm.behind(w, b) for w, b in zip(*_heads(side.weight, side.bias, width), strict=True)]
        for side in (module.query, module.key)
    ]
    return _paired(reaches[0], reaches[1], float(module.scaling), None)


def _paired(query: list[float], key: list[float], scale: float, softcap: float | None) -> list[float]:
    """Pair each query head with the key head its group shares."""
    group = len(query) // len(key)
    return [spread_from_reach(q, key[head // group], scale, softcap=softcap) for head, q in enumerate(query)]


def _heads(weight: torch.Tensor, bias: torch.Tensor | None, width: int) -> tuple[list[np.ndarray], list[Any]]:
    rows = _array(weight).reshape(-1, width, weight.shape[1])
    biases = [None] * len(rows) if bias is None else list(_array(bias).reshape(-1, width))
    return list(rows), biases


def _norm(module: Any) -> Norm:
    if isinstance(module, nn.LayerNorm):
        gain, bias = _array(module.weight), _array(module.bias) if module.bias is not None else np.zeros(1)
        return Norm(gain, bias, centred=True)
    # An RMSNorm of ones is its gain (Gemma's is 1 + weight), a hair less for epsilon.
    ones = torch.ones(1, 1, module.weight.numel(), device=module.weight.device, dtype=torch.float32)
    epsilon = float(getattr(module, "variance_epsilon", getattr(module, "eps", 0.0)))
    with torch.no_grad():
        gain = _array(module(ones)[0, 0]) * np.sqrt(1 + epsilon)
    return Norm(gain, np.zeros(1), centred=False)


def _rotary_scale(model: nn.Module) -> float:
    """Return what rotary embeddings multiply lengths by: 1, or more under YaRN and LongRoPE."""
    scales = [float(s) for m in model.modules() if isinstance(s := getattr(m, "attention_scaling", None), float | int)]
    return max([1.0, *scales])


def _array(tensor: torch.Tensor) -> np.ndarray:
    return np.asarray(tensor.detach().double().cpu().numpy())
