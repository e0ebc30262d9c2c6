"""Turn queries and keys where they meet, not where they are made: what dynamic NTK and Self-Extend need.

While it is on, the model's own rotation turns by nothing, and its cache holds keys as they were projected. A key's
position is counted back from the last query, which stands on the last key; so it is right with a growing cache, with
padding, and in chunks. A row has its own length, up to the last key that is not hidden from all: what else is in the
batch changes nothing.
"""

import sys
from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sharpmax.core.extension import LONGEST, DynamicNTK, Extension, SelfExtend
from sharpmax.torch.torch_internals import version_of

Turn = tuple[Tensor, Tensor]
"""Cosine and sine of positions, (batch, length, width)."""


class Turned(NamedTuple):
    """Queries and keys at the positions of one part of the keys."""

    query: Tensor
    key: Tensor


class LateRotation:
    """The rotation of one extension, as the sites of a model share it."""

    def __init__(self, extension: Extension, rotary: Any, frequencies_of: Callable[..., tuple[Tensor, float]]) -> None:
        self.extension, self.rotary = extension, rotary
        self._frequencies_of = frequencies_of
        self._memory: tuple[Any, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_memory": ()}

    def at_own_frequencies(self) -> "LateRotation":
        """Return the same at the model's own frequencies and positions: it changes nothing."""
        own = copy(self)
        own.extension, own._memory = DynamicNTK(1.0, LONGEST), ()
        return own

    def frequencies(self, length: int) -> Tensor:
        """Return the inverse frequencies of a row of so many tokens, on the processor."""
        if isinstance(self.extension, SelfExtend) or length <= self.extension.trained:
            frequencies: Tensor = self.rotary.module.inv_freq.detach().to("cpu")
            return frequencies
        return self._frequencies_of(self.extension, self.rotary, length)[0]

    @property
    def is_grouped(self) -> bool:
        """Whether far keys are read by groups: two sets of positions."""
        return isinstance(self.extension, SelfExtend)

    def turned(
        self, module: nn.Module, query: Tensor, key: Tensor, positions: Tensor | None, mask: Tensor | None = None
    ) -> Turned:
        """Return query (B, H, Lq, D) and key (B, Hkv, Lk, D) turned to their positions (B, Lq).

        `mask`, boolean or additive, tells dynamic NTK how long each row is.
        """
        return self._turned(module, query, key, positions, "near", None if self.is_grouped else mask)

    def grouped(self, module: nn.Module, query: Tensor, key: Tensor, positions: Tensor | None) -> Turned:
        """Return query and key turned to the positions of their groups."""
        return self._turned(module, query, key, positions, "far")

    def _turned(
        self, module: nn.Module, query: Tensor, key: Tensor, positions: Tensor | None, kind: str,
        mask: Tensor | None = None,
    ) -> Turned:  # fmt: skip
        at_query, at_key = self._turns(query, key, positions, kind, mask)
        rotate = _rotation_of(type(module))
        try:  # the family's own function turns both at once: what is not asked for is turned and dropped
            return Turned(rotate(query, query, *at_query)[0], rotate(key, key, *at_key)[1])
        except RuntimeError as error:
            turns, width = at_query[0].shape[-1], query.shape[3]
            if turns == width:
                raise
            raise NotImplementedError(
                f"{type(module).__name__} takes the {turns} of {width} numbers of a head that it turns out by itself, "
                f"so {type(self.extension).__name__} cannot turn them where they are read; extend it by Yarn"
            ) from error

    def _turns(
        self, query: Tensor, key: Tensor, positions: Tensor | None, kind: str, mask: Tensor | None
    ) -> tuple[Turn, Turn]:
        """Return cosine and sine of the queries' and of the keys' positions; all layers of a pass ask for the same."""
        versions = [0 if x is None or x.is_inference() else version_of(x) for x in (positions, mask)]
        asked = (positions, mask, *versions, query.shape[2], key.shape[2], query.dtype, query.device)
        memory = self._memory
        if not memory or not _same(memory[0], asked):
            memory = (asked, {})
        kept: dict[str, tuple[Turn, Turn]] = memory[1]
        if kind not in kept:
            kept[kind] = self._made(query, key, positions, kind, mask)
        if not torch.compiler.is_compiling():
            self._memory = memory
        return kept[kind]

    def _made(
        self, query: Tensor, key: Tensor, positions: Tensor | None, kind: str, mask: Tensor | None
    ) -> tuple[Turn, Turn]:
        at_query, at_key = places(query, key, positions)
        if kind == "far":
            assert isinstance(self.extension, SelfExtend)
            group, window = self.extension.group, self.extension.neighbours
            at_query = at_query.div(group, rounding_mode="floor") + window - window // group
            at_key = at_key.div(group, rounding_mode="floor")
        lengths, trained = [0], self.extension.trained
        if isinstance(self.extension, DynamicNTK):
            lengths = _lengths(at_query, at_key, mask, trained)
        longest = max(lengths)
        if longest <= trained or len(set(lengths)) == 1:
            turn = self._turn_at(longest)
            return turn(query, at_query), turn(key, at_key)
        turns = [self._turn_at(length) for length in lengths]
        at_query, at_key = (at.expand(len(lengths), -1) for at in (at_query, at_key))
        rows = range(len(lengths))
        of_query, of_key = (
            [turns[row](x, at[row : row + 1]) for row in rows] for x, at in ((query, at_query), (key, at_key))
        )
        return _stacked(of_query), _stacked(of_key)

    def _turn_at(self, length: int) -> Callable[[Tensor, Tensor], Turn]:
        from sharpmax.hf.sharpen.extension import twin_of  # which makes rotations, so it cannot be imported first

        forward: Callable[[Tensor, Tensor], Turn] = twin_of(self.rotary.module, self.frequencies(length), 1.0).forward
        return forward


def places(query: Tensor, key: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the positions of queries (B, Lq) and of keys (B, Lk), from 0."""
    if positions is None:
        positions = torch.arange(key.shape[2] - query.shape[2], key.shape[2], device=query.device)[None]
    if positions.ndim != 2:
        raise NotImplementedError(
            f"positions of shape {tuple(positions.shape)} are not those of one text; extend this model by Yarn"
        )
    if query.shape[2] == key.shape[2]:
        return positions, positions
    back = torch.arange(key.shape[2] - 1, -1, -1, device=positions.device)
    return positions, (positions[:, -1:] - back).clamp(min=0)


def _lengths(at_query: Tensor, at_key: Tensor, mask: Tensor | None, trained: int) -> list[int]:
    """Return how long each row is: one more than the position of its last key that a query sees.

    Raises:
        NotImplementedError: several texts in one row, each of which has a length of its own.
        ValueError: positions that count padding on the left, of a row that is longer than the trained context by them.
    """
    if mask is not None:
        from sharpmax.hf.sharpen.interface import HIDDEN  # which turns late, so it cannot be imported first

        visible = (mask if mask.dtype == torch.bool else mask > HIDDEN).flatten(1, 2).any(1)
        if at_query.shape == at_key.shape and at_key.amax() >= trained:
            first = visible.long().argmax(-1, keepdim=True)  # the first key that is not padding
            if bool(((first > 0) & (at_key.expand(len(first), -1).gather(1, first) > 0)).any()):
                raise ValueError(
                    "DynamicNTK reads off the positions how long a row is, and these count the padding on its left: "
                    "give position_ids that begin at 0 behind it, as generate does"
                )
        at_key = torch.where(visible, at_key, -1)
    if bool(((at_key == 0).sum(-1) > 1).any()):
        raise NotImplementedError(
            "DynamicNTK is not served in packed rows, whose texts have lengths of their own: give each text a row, or "
            "extend the model by Yarn"
        )
    lengths: list[int] = (at_key.amax(-1) + 1).clamp(min=1).tolist()
    return lengths


def _stacked(turns: list[Turn]) -> Turn:
    cosines, sines = zip(*turns, strict=True)
    return torch.cat(cosines), torch.cat(sines)


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Tell whether two calls ask for the same positions: the same tensor, not equal ones, which would wait for it."""
    return one[0] is other[0] and one[1] is other[1] and one[2:] == other[2:]


def _rotation_of(kind: type) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the function with which a family of models turns queries and keys."""
    for parent in kind.__mro__:
        rotate = getattr(sys.modules.get(parent.__module__), "apply_rotary_pos_emb", None)
        if rotate is not None:
            return rotate  # type: ignore[no-any-return]
    raise NotImplementedError(f"{kind.__name__} turns its queries and keys in a way of its own; extend it by Yarn")
