"""A policy chooses each row's inverse temperature from its statistics: `RowStats -> beta`.

A policy is data: a frozen dataclass whose fields are its configuration, its repr and its JSON. Numeric fields may be
arrays that broadcast against the rows, (heads, 1) for one value a head, and then they learn by gradient.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np

from sharpmax.core.arrays import Array, is_array, is_floating, like, namespace, stop_gradient, truth
from sharpmax.core.stats import RowStats, StatsAt

SMALLEST = 1e-12
"""Rows are scaled by at least this, so that a masked item stays masked whatever the policy says."""


class Policy(ABC):
    """Chooses beta, the inverse temperature of each row, from the row's statistics."""

    known: ClassVar[dict[str, type["Policy"]]] = {}
    """Every policy by its class name: what a card may name."""

    learnable: ClassVar[tuple[str, ...]] = ()
    """The fields that may be arrays, broadcasting against the rows, and learn by gradient; the others are fixed."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.known[cls.__name__] = cls

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

    def for_layer(self, index: int) -> "Policy":
        """Return the policy of one layer of a model: itself, unless it is a `PerLayer`."""
        return self

    def freeze(self) -> Self:
        """Return the same policy with every array turned into Python numbers, ready for JSON."""
        frozen = {f.name: _frozen(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return type(self)(**frozen)

    def save(self, path: str | PathLike[str], **details: Any) -> None:
        """Write a policy card (JSON) that `load_policy` reads back; `details` are the other fields of `Card`."""
        from sharpmax.core.cards import Card  # a card holds a policy, so it cannot be imported first

        Card(policy=self, **details).save(path)


def choose(policy: Policy | Callable[[RowStats], Array], stats: RowStats, stats_at: StatsAt | None = None) -> Array:
    """Return the policy's beta in the rows' shape: 1 for an empty row, never negative.

    Raises:
        TypeError: `policy` is neither a Policy nor a callable on RowStats.
        ValueError: a statistic it needs is missing, or it returned a negative beta.
    """
    if isinstance(policy, Policy):
        missing = sorted(name for name in policy.needs if getattr(stats, name) is None)
        if missing:
            raise ValueError(
                f"{type(policy).__name__} needs {', '.join(missing)}, which these rows do not have"
                + ("; only attention knows a query's position" if "position" in missing else "")
            )
        beta = policy(stats, stats_at)
    elif callable(policy):
        beta = policy(stats)
    else:
        raise TypeError(
            "policy must be a sharpmax policy (PAPER, Constant(1.0), EntropyTarget(0.5), …) or a callable "
            f"on RowStats, got {policy!r}"
        )
    xp = namespace(stats.maximum)
    beta = xp.zeros_like(stats.maximum) + like(beta, stats.maximum)
    if beta.shape != stats.maximum.shape:
        raise ValueError(
            f"{policy!r} gave an inverse temperature that does not broadcast to the rows' {tuple(stats.maximum.shape)}"
        )
    if truth(xp.any(beta < 0)):
        raise ValueError(f"{policy!r} gave a negative inverse temperature; beta must be 0 or more")
    return xp.where(stats.maximum == -xp.inf, xp.ones_like(beta), beta)


def needed(policy: Any) -> frozenset[str]:
    """Return the statistics to compute before calling the policy; a plain callable may read any."""
    if isinstance(policy, Policy):
        return policy.needs
    return frozenset({"entropy", "logsumexp", "maximum", "count", "minimum", "variance"})


def check_number(owner: str, name: str, value: Any, *, above: float = -math.inf, least: float = -math.inf) -> None:
    """Raise unless `value` is a finite number (or an array of them) greater than `above`, at least `least`.

    Values known only to a trace, and the placeholders that JAX rebuilds a pytree with, pass unchecked.
    """
    if isinstance(value, str | bytes | bool) or value is None:
        raise TypeError(f"{owner}.{name} must be a number or an array of numbers, got {value!r}")
    if isinstance(value, list | tuple):
        for item in value:
            check_number(owner, name, item, above=above, least=least)
        return
    if isinstance(value, int | float | np.number):
        wrong = not (math.isfinite(value) and value > above and value >= least)
    elif is_array(value):
        if not is_floating(value):
            raise TypeError(f"{owner}.{name} must have a floating dtype, got {value.dtype}")
        xp = namespace(value)
        known = stop_gradient(value)
        fine = xp.all(xp.isfinite(known) & (known > above) & (known >= least))
        wrong = truth(fine) is False
    else:
        return
    if wrong:
        bound = f" greater than {above:g}" if above > -math.inf else ""
        bound += f" of at least {least:g}" if least > -math.inf else ""
        raise ValueError(f"{owner}.{name} must be finite{bound}, got {value!r}")


def checked_policies(owner: str, policies: Any) -> tuple[Policy, ...]:
    """Return the policies as a tuple, or raise unless it is a sequence of one or more."""
    if not isinstance(policies, list | tuple):
        raise TypeError(f"{owner} holds a sequence of policies, got {policies!r}")
    if not policies:
        raise ValueError(f"{owner} needs at least one policy")
    for member in policies:
        if not isinstance(member, Policy):
            raise TypeError(f"{owner} holds policies, got {member!r}")
    return tuple(policies)


def _frozen(value: Any) -> Any:
    if isinstance(value, Policy):
        return value.freeze()
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    if is_array(value):
        return _frozen(np.asarray(stop_gradient(value)).tolist())
    return value
