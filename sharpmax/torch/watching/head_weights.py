"""Find the numbers that a head's queries and keys are linear in: rows of projections, or the weights of their norm.

plain     rows of both projections, √γ each, as MuonClip does (Kimi K2, arXiv 2507.20534)
grouped   rows of the query projection, γ: keys are shared with heads that may need no clip
normed    the norm undoes any scale in front of it, so its own weight is scaled. One weight for all heads is scaled
          by the smallest γ of the layer: a head cannot be reached alone. One weight per head, as OLMo 2 has, can
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

PAIRS = (("q_proj", "k_proj"), ("query", "key"), ("q_lin", "k_lin"), ("wq", "wk"), ("q", "k"))
"""How families name their two projections."""
OTHER_NORMS = ("q_layernorm", "k_layernorm", "query_layernorm", "key_layernorm", "qk_norm", "query_norm", "key_norm")
"""Norms of queries and keys that are not known here; those that are known are `q_norm` and `k_norm`."""


class Part(NamedTuple):
    """A parameter, the axis that runs over outputs, the outputs of each head (heads, width), and what is added first.

    Gemma's norms multiply by 1 + weight: there `shift` is 1.
    """

    parameter: nn.Parameter
    axis: int
    rows: Tensor
    shift: float = 0.0

    def is_also(self, other: "Part") -> bool:
        """Tell whether another part is the same numbers, as where queries and keys share a projection."""
        return self.parameter is other.parameter and torch.equal(self.rows, other.rows)


@dataclass(frozen=True)
class HeadWeights:
    """What to scale so that every logit of a head is multiplied by its factor.

    Attributes:
        query, key: parts with a row of outputs per head; a key part has one per key head.
        shared: whether all heads of the layer share the parts, and get the smallest factor.
    """

    query: list[Part]
    key: list[Part]
    shared: bool = False

    @torch.no_grad()
    def scale(self, factor: Tensor) -> Tensor:
        """Multiply each head's logits by its factor (heads,); return the factors that were applied.

        A factor of 1 leaves a weight bit-equal.
        """
        if self.shared:
            factor = factor.amin().expand(factor.shape)
        if not self.key:
            self._multiply(self.query, factor)
            return factor
        root = factor.sqrt()
        self._multiply(self.query, root)
        self._multiply([part for part in self.key if not any(part.is_also(other) for other in self.query)], root)
        return factor

    def _multiply(self, parts: list[Part], factor: Tensor) -> None:
        for parameter, axis, rows, shift in parts:
            each = torch.ones(_outputs(parameter, axis), dtype=factor.dtype, device=factor.device)
            of_rows = factor[: len(rows), None] if len(rows) != len(factor) else factor[:, None]
            each[rows.to(factor.device)] = of_rows.expand(rows.shape)
            _multiply_along(parameter, each, axis, shift)


def head_weights(owner: Any, heads: int, name: str) -> HeadWeights:
    """Return the weights of a module with `heads` query heads.

    Raises:
        NotImplementedError: a module whose queries and keys are not known to be linear in weights of each head.
    """
    for norm in OTHER_NORMS:
        if getattr(owner, norm, None) is not None:
            raise _refusal(name, f"it normalises queries or keys by {norm}, which is not known here")
    if getattr(owner, "q_norm", None) is not None or getattr(owner, "k_norm", None) is not None:
        return _normed(owner, heads, name)
    if getattr(getattr(owner, "config", None), "clip_qkv", None) is not None:
        raise _refusal(name, "clip_qkv cuts off its queries and keys, which are then not linear in its weights")
    query, key = _projections(owner, heads, name)
    return HeadWeights(query, key if len(key[0].rows) == heads else [])


def must_be_apart(of: Mapping[str, HeadWeights]) -> None:
    """Raise NotImplementedError where two modules share a weight: it would be scaled once for each of them."""
    owners: dict[int, str] = {}
    for name, weights in of.items():
        for parameter in {id(part.parameter) for part in (*weights.query, *weights.key)}:
            if parameter in owners:
                raise _refusal(name, f"it shares its weights with {owners[parameter]}")
            owners[parameter] = name


def _normed(owner: Any, heads: int, name: str) -> HeadWeights:
    norm = getattr(owner, "q_norm", None)
    weight = getattr(norm, "weight", None)
    if not isinstance(weight, nn.Parameter):
        raise _refusal(name, "its norm of queries has no weight to scale")
    width = getattr(owner, "head_dim", None) or weight.numel()
    shift = _shift(norm, name)
    parts = [weight, getattr(norm, "bias", None)]
    if weight.numel() == width:
        rows = torch.arange(width)[None]
        return HeadWeights([Part(p, 0, rows, shift if p is weight else 0.0) for p in parts if p is not None], [], True)
    if weight.ndim != 1 or weight.numel() != heads * width:
        raise _refusal(name, f"its norm of queries has {weight.numel()} weights for {heads} heads of {width}")
    rows = torch.arange(heads * width).view(heads, width)
    return HeadWeights([Part(p, 0, rows, shift if p is weight else 0.0) for p in parts if p is not None], [])


@torch.no_grad()
def _shift(norm: Any, name: str) -> float:
    """Return 1 for a norm that multiplies by 1 + weight, 0 for one that multiplies by its weight.

    Names do not tell (Gemma 3 adds 1, Gemma 4 does not, Qwen 3.5 does), so a copy of it is tried with other weights.
    """
    count = norm.weight.numel()
    x = torch.linspace(-1.0, 2.0, count)[None]

    def output(weight: float) -> Tensor:
        bare = copy.copy(norm)
        filled = {"weight": torch.full((count,), weight), "bias": torch.zeros(count)}
        own = {key: part if part is None else nn.Parameter(filled[key]) for key, part in norm._parameters.items()}
        bare.__dict__["_parameters"] = own
        return type(norm).forward(bare, x).float()  # type: ignore[no-any-return]

    try:
        none, one, two = output(0.0), output(1.0), output(2.0)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise _refusal(name, f"how a {type(norm).__name__} uses its weight is not known here") from error
    if not torch.allclose(two - one, one - none) or not one.any():
        raise _refusal(name, f"a {type(norm).__name__} is not linear in its weight")
    if not none.any():
        return 0.0
    if torch.allclose(one, 2 * none):
        return 1.0
    raise _refusal(name, f"a {type(norm).__name__} adds to its weight what is not known here")


def _projections(owner: Any, heads: int, name: str) -> tuple[list[Part], list[Part]]:
    """Return the parts of queries and of keys, however the family stores them."""
    if isinstance(owner, nn.MultiheadAttention):
        return _of_multihead(owner, heads)
    inner = getattr(owner, "qkv_linear", owner)  # torchtitan keeps its projections in a module of their own
    for query, key in PAIRS:
        if isinstance(getattr(inner, query, None), nn.Module) and isinstance(getattr(inner, key, None), nn.Module):
            q, k = getattr(inner, query), getattr(inner, key)
            width = _outputs_of(q, name) // heads
            return _parts(q, _blocks(0, heads, width), name), _parts(
                k, _blocks(0, _outputs_of(k, name) // width, width), name
            )
    kind = type(owner).__name__
    if kind in FUSED and not getattr(owner, "is_cross_attention", False):
        projection, rows_of = FUSED[kind]
        fused = getattr(owner, projection)
        q_rows, k_rows = rows_of(owner, heads, _outputs_of(fused, name))
        return _parts(fused, q_rows, name), _parts(fused, k_rows, name)
    if fused := next((one for one in FUSED_NAMES if isinstance(getattr(owner, one, None), nn.Module)), None):
        raise _refusal(name, f"which rows of {fused} are which head's is not known of a {kind}")
    raise _refusal(name, f"how a {type(owner).__name__} makes its queries and keys is not known here")


def _side_by_side(owner: Any, heads: int, outputs: int) -> tuple[Tensor, Tensor]:
    """Return the rows of queries and keys where all queries come first, then the keys, then as many values."""
    if outputs % 3 == 0 and not hasattr(owner, "num_key_value_groups"):
        return _blocks(0, heads, outputs // 3 // heads), _blocks(outputs // 3, heads, outputs // 3 // heads)
    width = int(owner.head_dim)
    return _blocks(0, heads, width), _blocks(heads * width, (outputs // width - heads) // 2, width)


def _head_by_head(owner: Any, heads: int, outputs: int) -> tuple[Tensor, Tensor]:
    """Return the rows where each head has its query, then its key, then its value."""
    del owner
    rows = torch.arange(outputs).view(heads, 3, -1)
    return rows[:, 0], rows[:, 1]


def _of_bigcode(owner: Any, heads: int, outputs: int) -> tuple[Tensor, Tensor]:
    """Return the rows of StarCoder: head by head, or all queries beside the one key head that they share."""
    return (_side_by_side if owner.multi_query else _head_by_head)(owner, heads, outputs)


FUSED: dict[str, tuple[str, Callable[[Any, int, int], tuple[Tensor, Tensor]]]] = {
    "GPT2Attention": ("c_attn", _side_by_side),
    "GPTBigCodeAttention": ("c_attn", _of_bigcode),
    "GPTNeoXAttention": ("query_key_value", _head_by_head),
    "ModernBertAttention": ("Wqkv", _side_by_side),
    "Phi3Attention": ("qkv_proj", _side_by_side),
    "Phi4MultimodalAttention": ("qkv_proj", _side_by_side),
}
"""Classes with one projection for all three: its name, and which rows are each head's. A name alone does not tell."""
FUSED_NAMES = ("qkv_proj", "query_key_value", "Wqkv", "c_attn", "qkv", "in_proj", "qkv_linear")


def _of_multihead(owner: nn.MultiheadAttention, heads: int) -> tuple[list[Part], list[Part]]:
    width = owner.embed_dim // heads
    q, k = _blocks(0, heads, width), _blocks(owner.embed_dim, heads, width)
    together: Any = owner.in_proj_weight
    if together is None:
        query, key = [Part(owner.q_proj_weight, 0, q)], [Part(owner.k_proj_weight, 0, q)]
    else:
        query, key = [Part(together, 0, q)], [Part(together, 0, k)]
    if owner.in_proj_bias is not None:
        query.append(Part(owner.in_proj_bias, 0, q))
        key.append(Part(owner.in_proj_bias, 0, k))
    return query, key


def _parts(layer: Any, rows: Tensor, name: str) -> list[Part]:
    axis = _output_axis(layer)
    parts = [Part(_weight(layer, name), axis, rows)]
    return parts if getattr(layer, "bias", None) is None else [*parts, Part(layer.bias, 0, rows)]


def _weight(layer: Any, name: str) -> nn.Parameter:
    weight = getattr(layer, "weight", None)
    if hasattr(layer, "base_layer"):
        raise _refusal(name, "an adapter stands beside its projections; merge it first")
    if not isinstance(weight, nn.Parameter) or not weight.is_floating_point() or weight.ndim != 2:
        raise _refusal(
            name, "its projections are quantised, parametrised, or flattened by FSDP1; use fully_shard (FSDP2)"
        )
    return weight


def _output_axis(layer: Any) -> int:
    return 1 if type(layer).__name__ == "Conv1D" else 0  # GPT-2's layers are transposed


def _outputs_of(layer: Any, name: str) -> int:
    return _outputs(_weight(layer, name), _output_axis(layer))


def _outputs(parameter: Tensor, axis: int) -> int:
    return int(parameter.shape[axis])


def _blocks(start: int, heads: int, width: int) -> Tensor:
    return torch.arange(start, start + heads * width).view(heads, width)


def _multiply_along(parameter: Tensor, each: Tensor, axis: int, shift: float) -> None:
    """Multiply in the wider of the two dtypes, and round once; a sharded parameter by its own part of `each`."""
    local = parameter
    if isinstance(parameter, DTensor):
        placements = [Shard(0) if p.is_shard(axis) else Replicate() for p in parameter.placements]
        each = distribute_tensor(each, parameter.device_mesh, placements, src_data_rank=None).to_local()
        local = parameter.to_local()
    each = each.to(local.device)
    each = each if axis == local.ndim - 1 else each[:, None]
    scaled = local * each if not shift else torch.where(each == 1, local, (local + shift) * each - shift)
    local.copy_(scaled)


def _refusal(name: str, why: str) -> NotImplementedError:
    return NotImplementedError(f"{name or 'the model'} cannot be clipped per head: {why}")
