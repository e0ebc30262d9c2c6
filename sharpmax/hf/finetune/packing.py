"""Many examples end to end in one row, each attending within itself: exact, and only attention pays for padding.

Projections, norms and MLPs treat every token alone, so they take the row as it is. For attention the examples are laid
out as a few batches of like length, padded on the right, where no token of theirs looks; each batch is one call of the
model's own attention, sharpened or not, and what comes out is put back into the row. So a step may mix examples of any
length, and no mask is needed that the fast kernels would refuse.

Where fused kernels serve packed rows, half precision on a GPU, a layer attends in one call on the row itself, without
padding (`fused_row`).
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sharpmax.extras import extra
from sharpmax.hf.finetune.fused_row import attend_fused, count_packed_rows
from sharpmax.hf.sharpen.interface import EAGER_NAME
from sharpmax.hf.sharpen.layers import attention_layers, configs_of
from sharpmax.torch.documents import Documents, documents_of

with extra("hf"):
    import torch
    from torch import Tensor, nn
    from torch.autograd import Function
    from transformers import AttentionInterface

NAME = "sharpmax_packed"
"""Our name in transformers' attention interface. It has no entry in the mask interface, so no mask is made."""
MULTIPLE = 64
"""Batches are as wide as a multiple of this: few shapes, and whole tiles for the kernels."""
SHORT, GROWTH = 256, 3
"""Examples up to this length share a batch, those up to 3 times it another, up to 9 times a third, …: few calls.

Batches are as tall and as wide as one of few numbers (`coarse`): cuDNN plans each new shape for some 60 ms a pass.
"""

PROBED = 8  # tokens of each of the two examples that tell whether a model keeps them apart


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the tokens of a row attend.

    Attributes:
        shapes: (examples, width) of each batch; their cells are counted through.
        places: for every cell, the place in the row of the token in it; padding repeats an example's last token, or is
            a whole example of the row's first.
        cells: for every token of the row, its cell.
        documents: the examples, as fused kernels take them.
    """

    shapes: tuple[tuple[int, int], ...]
    places: Tensor
    cells: Tensor
    documents: Documents


def lay_out(sizes: Sequence[int]) -> Layout:
    """Return the layout of a row that holds examples of these sizes, end to end.

    >>> lay_out([3, 2]).shapes
    ((2, 64),)
    """
    size = np.asarray(sizes)
    start = np.cumsum(size) - size
    batch = np.ceil(np.log(np.maximum(size, SHORT) / SHORT) / np.log(GROWTH) - 1e-9).astype(int)
    shapes, places, cells, filled = [], [], np.empty(int(size.sum()), np.int64), 0
    for which in np.unique(batch):
        chosen = np.flatnonzero(batch == which)
        more = coarse(len(chosen)) - len(chosen)  # rows of padding: the first token, again and again
        first, length = np.pad(start[chosen], (0, more)), np.pad(size[chosen], (0, more), constant_values=1)
        column = np.arange(MULTIPLE * coarse(round_up(int(length.max())) // MULTIPLE))
        place = first[:, None] + np.minimum(column, length[:, None] - 1)
        real = column < length[:, None]
        real[len(chosen) :] = False
        cells[place[real]] = filled + np.flatnonzero(real)
        filled += place.size
        places.append(place.ravel())
        shapes.append(place.shape)
    in_cells, of_tokens = torch.from_numpy(np.concatenate(places)), torch.from_numpy(cells)
    return Layout(tuple(shapes), in_cells, of_tokens, documents_of(sizes))


def round_up(length: int) -> int:
    """Return the least multiple of `MULTIPLE` that holds the length."""
    return -(-length // MULTIPLE) * MULTIPLE


def coarse(count: int) -> int:
    """Return the least number of at most three binary digits, then zeros, that is not below.

    >>> [coarse(n) for n in (1, 7, 9, 17, 100, 130)]
    [1, 7, 10, 20, 112, 160]
    """
    step = 1 << max(0, (count - 1).bit_length() - 3)
    return -(-count // step) * step


class Inner(NamedTuple):
    """How a module attends where nothing is packed: the interface's name and function, and what makes its mask."""

    name: str
    attend: Callable[..., Any]
    mask_of: Callable[[Tensor, int | None], Tensor | None]


class Packing:
    """What the attention modules of a packed model share: the layout of the row that passes now."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.layout: Layout | None = None
        self.inner = {module: _attention_of(module) for module in modules}


@contextmanager
def packing(model: nn.Module) -> Iterator[Packing]:
    """Inside this block the model takes one packed row at a time, laid out as the `layout` that is set before.

    It attends as it did before the block, example by example: plainly, or by the policy that is on.

    Raises:
        NotImplementedError: attention that cannot be reached, or that takes masks of its own kind.
    """
    AttentionInterface.register(NAME, packed_attention)
    configs = [(config, config._attn_implementation) for config in configs_of(model)]
    modules = [layer.module for layer in attention_layers(model)]
    shared = Packing(modules)
    try:
        for module in modules:
            module.__dict__["sharpmax_packing"] = shared
        for config, _ in configs:
            config.__dict__["_attn_implementation_internal"] = NAME
        yield shared
    finally:
        for config, name in configs:
            config.__dict__["_attn_implementation_internal"] = name
        for module in modules:
            module.__dict__.pop("sharpmax_packing", None)


def require_apart(model: Any) -> None:
    """Refuse a model in which packed examples reach one another beside attention: by a convolution, or by a state.

    The gradient of one example by the embeddings of another in its row tells: it is exactly 0 where they are apart.

    Raises:
        NotImplementedError: it would be trained on other examples than it is judged on.
    """
    modes = [(module, module.training) for module in model.modules()]
    read: list[Tensor] = []

    def detached(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        read.append(output.detach().requires_grad_())
        return read[-1]

    hook = model.get_input_embeddings().register_forward_hook(detached)
    try:
        model.eval()
        with torch.enable_grad(), packing(model) as row:
            layout, device = lay_out([PROBED, PROBED]), model.device
            in_cells, of_tokens = layout.places.to(device), layout.cells.to(device)
            row.layout = Layout(layout.shapes, in_cells, of_tokens, layout.documents.on(device))
            places = torch.arange(PROBED, device=device).repeat(2)[None]
            told = {"input_ids": places, "position_ids": places, "use_cache": False}
            second = model.base_model(**told).last_hidden_state[0, PROBED:].float()
            weights = torch.arange(second.numel(), device=device).view_as(second).sin()
            (reached,) = torch.autograd.grad((second * weights).sum(), read[:1])
    finally:
        hook.remove()
        for module, mode in modes:
            module.training = mode
    if reached[0, :PROBED].any():
        raise NotImplementedError(
            f"{type(model).__name__} carries something from token to token beside attention, so examples that share a "
            "row would reach one another: it cannot be fine-tuned here"
        )


@torch.compiler.disable  # type: ignore[untyped-decorator] # its shapes differ from row to row; all around it is of one
def packed_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attend within each example of a row: query (1, H, T, D), key and value (1, Hkv, T, D) -> output (1, T, H, Dv)."""
    shared: Any = module.sharpmax_packing
    layout, (name, attend, mask_of) = shared.layout, shared.inner[module]
    if attention_mask is not None or query.shape[0] != 1 or query.shape[2] != len(layout.cells):
        raise ValueError(f"expected one row of {len(layout.cells)} tokens and no mask, got {tuple(query.shape)}")
    query, key, value = (_cast(x) for x in (query, key, value))
    fused = attend_fused(module, name, attend, query, key, value, layout.documents, options)
    if fused is not None:
        return fused, None
    if count_packed_rows(module, query, key, layout.documents, options):
        options = {**options, "counted": True}  # batches hold padding
    tokens = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))  # the gradient of an index would be a copy
    spread = [_Spread.apply(x, layout.places, layout.cells) for x in tokens]  # type: ignore[no-untyped-call]
    # Split, whose gradient is one concatenation; that of a slice is as large as all of them.
    batches = zip(*(x.split([rows * width for rows, width in layout.shapes]) for x in spread), strict=True)
    outputs = []
    for shape, of_batch in zip(layout.shapes, batches, strict=True):
        q, k, v = (x.unflatten(0, shape).transpose(1, 2) for x in of_batch)
        output, _ = attend(module, q, k, v, mask_of(q, options.get("sliding_window")), **options)
        outputs.append(output.flatten(0, 1))
    row: Tensor = _Gather.apply(torch.cat(outputs), layout.cells)  # type: ignore[no-untyped-call]
    return row[None], None


def _cast(tensor: Tensor) -> Tensor:
    """Cast as autocast would cast attention's arguments, before they are copied rather than after."""
    kind = tensor.device.type
    half = torch.is_autocast_enabled(kind) and tensor.dtype == torch.float32
    return tensor.to(torch.get_autocast_dtype(kind)) if half else tensor


def _attention_of(module: Any) -> Inner:
    """Return the attention that the module asks for."""
    name = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if name == "eager":
        return Inner(name, sys.modules[type(module).__module__].eager_attention_forward, _added_mask)
    if name is None or name == "flex_attention":
        raise NotImplementedError(f"{type(module).__name__} attends by {name}, which packed examples cannot")
    return Inner(name, AttentionInterface()[name], _added_mask if name == EAGER_NAME else _window_mask)


def _window_mask(query: Tensor, window: int | None) -> Tensor | None:
    """Return a mask where a window hides something; causality needs none."""
    return None if window is None or query.shape[2] <= window else _visible(query, window)


def _added_mask(query: Tensor, window: int | None) -> Tensor:
    """Return the mask that eager attention adds to its logits, and knows of causality by."""
    visible = _visible(query, window or query.shape[2])
    return torch.zeros(visible.shape, dtype=query.dtype, device=query.device).masked_fill(
        ~visible, torch.finfo(query.dtype).min
    )


def _visible(query: Tensor, window: int) -> Tensor:
    place = torch.arange(query.shape[2], device=query.device)
    apart = place[:, None] - place
    return ((apart >= 0) & (apart < window))[None, None]


class _Spread(Function):
    """Tokens into their cells. Padding gets no gradient (`_Gather` drops it), so each token's comes from one cell."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, places: Tensor, cells: Tensor) -> Tensor:
        ctx.save_for_backward(cells)
        return tokens.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (cells,) = ctx.saved_tensors
        return gradients[0].index_select(0, cells), None, None


class _Gather(Function):
    """Cells back into the row; a cell of padding is dropped, and gets a gradient of 0."""

    @staticmethod
    def forward(ctx: Any, filled: Tensor, cells: Tensor) -> Tensor:
        ctx.save_for_backward(cells)
        ctx.count = len(filled)
        return filled.index_select(0, cells)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (cells,) = ctx.saved_tensors
        back = gradients[0].new_zeros(ctx.count, *gradients[0].shape[1:])
        return back.index_copy_(0, cells, gradients[0]), None
