"""A policy chooses each row's inverse temperature from its statistics: `RowStats -> beta`.

A policy is data: a frozen dataclass whose fields are its configuration, its repr and its JSON. Numeric fields may be
arrays that broadcast against the rows, (heads, 1) for one value per head, and then they learn by gradient. Equality is
`Policy`'s own (`eq=False`): that of a dataclass asks an array for its truth.
"""

import dataclasses
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np

from sharpmax.core.arrays import (
    Array,
    clamp,
    is_array,
    is_at_hand,
    like,
    namespace,
    to_numpy,
    truth,
)
from sharpmax.core.checks import shape_of, short
from sharpmax.core.stats import RowStats, StatsAt

SMALLEST, LARGEST = 1e-12, 1e18
"""Rows are scaled by at least and at most this: a masked item stays masked, and nothing overflows float32."""


class Policy(ABC):
    """Chooses beta, the inverse temperature of each row, from the row's statistics."""

    known: ClassVar[dict[str, type["Policy"]]] = {}
    """Every policy by its class name: what a card may name."""

    learnable: ClassVar[tuple[str, ...]] = ()
    """The fields that may be arrays, broadcasting against the rows, and learn by gradient; the others are fixed."""

    never_negative: ClassVar[bool] = False
    """Whether no numbers at all give a beta below 0, whatever an array becomes; asked of our own policies only."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        taken = cls.known.get(cls.__name__)
        if taken is not None and _is_ours(taken) and not _is_ours(cls):
            raise TypeError(
                f"sharpmax has a policy named {cls.__name__}, which cards know by that name; choose another"
            )
        cls.known[cls.__name__] = cls

    def __post_init__(self) -> None:
        """Keep copies of NumPy arrays and lists, so that no one changes them unchecked.

        Tensors and JAX arrays stay the caller's, because they learn: what they become is checked when beta is chosen,
        where it can be read without waiting for a device.
        """
        for name in self.learnable:
            given = getattr(self, name)
            if (owned := _owned(given)) is not given:
                object.__setattr__(self, name, owned)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields: what is remembered of a policy stays behind when it is copied or sent away."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_on_device", "_looked_at")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the fields, and own the arrays among them as `__post_init__` does: a copy is as unchangeable."""
        for name, value in state.items():
            object.__setattr__(self, name, _owned(value))

    def __eq__(self, other: object) -> bool:
        """Tell whether they are of one kind and hold the same numbers, in the same shapes, whatever holds those."""
        return type(self) is type(other) and _same(_held(self), _held(other))

    def __hash__(self) -> int:
        """Hash what it holds; a policy with arrays has no hash, because they may change under it."""
        if _holds_array(_held(self)):
            raise TypeError(f"{type(self).__name__} holds arrays, which may change: freeze() it before it is hashed")
        return hash((type(self), _held(self)))

    @abstractmethod
    def __call__(self, stats: RowStats, stats_at: StatsAt | None = None) -> Array:
        """Return beta for each row; `stats_at(beta)` gives the statistics of the rows scaled by beta."""

    @property
    def needs(self) -> frozenset[str]:
        """The statistics it reads, by field name: an implementation computes no others."""
        return frozenset({"entropy"})

    @property
    def iterative(self) -> bool:
        """Whether it calls `stats_at`: each call is another pass over the logits."""
        return False

    @property
    def fitted_range(self) -> dict[str, tuple[float, float]]:
        """The range of each statistic it was fitted on; empty when it was not fitted, or nobody recorded it."""
        return {}

    @property
    def silent_above(self) -> float | None:
        """The entropy above which it does nothing although it acts below; None when there is no such point."""
        return None

    def silent_on(self, stats: RowStats) -> Array | None:
        """Tell for each row whether it is beyond `silent_above`; None when no row can be."""
        return None if self.silent_above is None else stats.entropy > self.silent_above

    @property
    def field_shapes(self) -> list[tuple[int, ...]]:
        """The shape of each learnable field, which must broadcast to the rows."""
        return [shape_of(getattr(self, name)) for name in self.learnable]

    def misfit(self, rows: tuple[int, ...]) -> str | None:
        """Say which arrays, of a policy inside it too, do not broadcast to rows of this shape; None if all do."""
        if all(_fits(shape, rows) for shape in self.field_shapes):
            return None
        shapes = self.field_shapes
        return f"the arrays of {type(self).__name__} have shapes {shapes}, which do not broadcast to the rows' {rows}"

    def for_layer(self, index: int) -> "Policy":
        """Return the policy of one layer of a model: itself, unless it is a `PerLayer`."""
        return self

    def freeze(self) -> Self:
        """Return the same policy with every array turned into Python numbers, ready for JSON."""
        if not hasattr(self, "__dataclass_fields__"):
            raise TypeError(
                f"{type(self).__name__} is no dataclass, whose fields a card holds: decorate it, to save or freeze it"
            )
        frozen = {f.name: _frozen(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return type(self)(**frozen)

    def save(self, path: str | PathLike[str], **details: Any) -> None:
        """Write a policy card (JSON) that `load_policy` reads back; `details` are the other fields of `Card`."""
        from sharpmax.core.cards import Card  # a card holds a policy, so it cannot be imported first

        Card(policy=self, **details).save(path)


def choose(policy: Policy | Callable[[RowStats], Array], stats: RowStats, stats_at: StatsAt | None = None) -> Array:
    """Return the policy's beta in the rows' shape: 1 for an empty row, between 0 and `LARGEST`.

    Raises:
        TypeError: `policy` is neither a Policy nor a callable on RowStats that returns numbers.
        ValueError: a statistic it needs is missing, its arrays do not fit the rows, or its beta is negative. Where
            that cannot be seen without waiting, under a trace or on an accelerator, the row's beta is NaN.
    """
    if isinstance(policy, Policy):
        missing = sorted(name for name in policy.needs if getattr(stats, name, None) is None)
        if missing:
            raise ValueError(
                f"{type(policy).__name__} needs {', '.join(missing)}, which these rows do not have"
                + ("; only attention knows a query's position" if "position" in missing else "")
            )
    elif isinstance(policy, type) or not callable(policy):
        raise TypeError(
            "policy must be a sharpmax policy (PAPER, Constant(1.0), EntropyTarget(0.5), …) or a callable "
            f"on RowStats, got {short(policy)}"
        )
    xp = namespace(stats.maximum)
    shape = tuple(stats.maximum.shape)
    try:
        chosen = policy(stats, stats_at) if isinstance(policy, Policy) else policy(stats)
        if not (is_array(chosen) or isinstance(chosen, int | float)):
            raise TypeError(f"a policy returns an inverse temperature per row, got {short(chosen)}")
        if is_array(chosen) and not _fits(tuple(chosen.shape), shape):
            raise ValueError(
                f"the policy gave an inverse temperature of shape {tuple(chosen.shape)}, "
                f"which does not broadcast to the rows' {shape}"
            )
        beta = clamp(xp.zeros_like(stats.maximum) + like(chosen, stats.maximum), high=LARGEST)
    # Each library has its own word for shapes that do not fit, and for a statistic that is None.
    except (ValueError, RuntimeError, TypeError, AttributeError) as error:
        misfit = policy.misfit(shape) if isinstance(policy, Policy) else None
        if misfit is None and isinstance(policy, Policy) and "NoneType" in str(error):
            named = ", ".join(sorted(policy.needs)) or "nothing"
            misfit = (
                f"{type(policy).__name__} fails on a None ({error}): a statistic that its `needs` does not name is "
                f"None, and it names {named}"
            )
        if misfit is None:
            raise
        raise ValueError(misfit) from error
    if _may_go_below_zero(policy):
        # To look at values waits for the device: of our own policies only those at hand are looked at.
        looked_at = is_at_hand(beta) or not _is_all_ours(policy)
        negative = truth(xp.any(beta < 0)) if looked_at else None
        if negative:
            raise ValueError(f"{short(policy)} gave a negative inverse temperature; beta must be 0 or more")
        if negative is None:  # a graph, or a device: such a row is poisoned in its place
            beta = xp.where(beta < 0, xp.full_like(beta, xp.nan), beta)
    return xp.where(stats.maximum == -xp.inf, xp.ones_like(beta), beta)


def needed(policy: Any) -> frozenset[str]:
    """Return the statistics to compute before calling the policy; a plain callable may read any."""
    if isinstance(policy, Policy):
        return policy.needs
    return frozenset({"entropy", "logsumexp", "maximum", "count", "minimum", "variance"})


def checked_policies(owner: str, policies: Any) -> tuple[Policy, ...]:
    """Return the policies as a tuple, or raise unless it is a sequence of one or more."""
    if not isinstance(policies, list | tuple):
        raise TypeError(f"{owner} holds a sequence of policies, got {short(policies)}")
    if not policies:
        raise ValueError(f"{owner} needs at least one policy")
    for member in policies:
        if not isinstance(member, Policy):
            raise TypeError(f"{owner} holds policies, got {short(member)}")
    return tuple(policies)


def _fits(shape: tuple[int, ...], rows: tuple[int, ...]) -> bool:
    """Tell whether an array of this shape broadcasts to the rows without widening them."""
    pairs = zip(reversed(shape), reversed(rows), strict=False)
    # Not `have in (1, want)`: a length that torch.compile leaves open is found there only by identity.
    return len(shape) <= len(rows) and all(have == 1 or have == want for have, want in pairs)


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("sharpmax.")


def _may_go_below_zero(held: Any) -> bool:
    """Tell whether a policy, or a field of one, may lead to a beta below 0: our own policies of numbers do not."""
    if isinstance(held, Policy):
        if not _is_ours(type(held)):
            return True
        return not held.never_negative and any(map(_may_go_below_zero, _held(held)))
    if isinstance(held, tuple):
        return any(map(_may_go_below_zero, held))
    return held is not None and not isinstance(held, int | float | str | np.generic)  # an array, or a plain callable


def _is_all_ours(held: Any) -> bool:
    """Tell whether a policy, and every policy inside it, is our own."""
    if isinstance(held, Policy):
        return _is_ours(type(held)) and all(map(_is_all_ours, _held(held)))
    return all(map(_is_all_ours, held)) if isinstance(held, tuple) else not callable(held)


def _held(policy: Any) -> tuple[Any, ...]:
    """Return what tells a policy from others of its kind: its fields, or, where a user's own has none, which it is."""
    if not dataclasses.is_dataclass(policy):
        return (id(policy),)
    return tuple(getattr(policy, f.name) for f in dataclasses.fields(policy))


def _same(ours: Any, theirs: Any) -> bool:
    ours, theirs = (to_numpy(value).tolist() if is_array(value) else value for value in (ours, theirs))
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return bool(ours == theirs)


def _owned(value: Any) -> Any:
    """Return what a policy keeps of a field: a copy of what may change under it, else the value itself."""
    if isinstance(value, np.ndarray):
        copy = value.copy()
        copy.flags.writeable = False
        return copy
    if isinstance(value, list | tuple):
        items = tuple(_owned(item) for item in value)
        return value if isinstance(value, tuple) and all(map(operator.is_, items, value)) else items
    return value


def _holds_array(value: Any) -> bool:
    if isinstance(value, Policy):
        return _holds_array(_held(value))
    if isinstance(value, tuple):
        return any(_holds_array(item) for item in value)
    return is_array(value) and not isinstance(value, np.generic)


def _frozen(value: Any) -> Any:
    if isinstance(value, Policy):
        return value.freeze()
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    return _frozen(to_numpy(value).tolist()) if is_array(value) else value
