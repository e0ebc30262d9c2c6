"""Policies made of policies: one per head, one per layer, and one held constant to the gradient."""

from dataclasses import dataclass
from typing import ClassVar

from sharpmax.core.arrays import Array, namespace, stop_gradient
from sharpmax.core.policies.base import Policy, checked_policies
from sharpmax.core.stats import RowStats, StatsAt


class _Members:
    """What a policy of several policies has of all of them; each member's arrays broadcast to its own rows."""

    policies: tuple[Policy, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "policies", checked_policies(type(self).__name__, self.policies))

    @property
    def needs(self) -> frozenset[str]:
        """What any member needs."""
        return frozenset().union(*(policy.needs for policy in self.policies))

    @property
    def iterative(self) -> bool:
        """Whether any member iterates."""
        return any(policy.iterative for policy in self.policies)

    @property
    def field_shapes(self) -> list[tuple[int, ...]]:
        """None of its own."""
        return []


@dataclass(frozen=True, eq=False)
class PerHead(_Members, Policy):
    """One policy for each query head; rows are (…, head, query).

    An iterative member makes a statistics pass over all heads each time it asks. Where all members are of one kind,
    one policy with array fields of shape (heads, 1) says the same and runs once.
    """

    learnable: ClassVar = ("policies",)

    policies: tuple[Policy, ...]

    @property
    def silent_above(self) -> float | None:
        """The lowest entropy at which some head's policy switches itself off."""
        points = [policy.silent_above for policy in self.policies if policy.silent_above is not None]
        return min(points, default=None)

    def silent_on(self, stats: RowStats) -> Array | None:
        """Ask each head's policy about its own rows."""
        if self.silent_above is None:
            return None
        xp = namespace(stats.entropy)
        never = xp.zeros_like(stats.entropy[..., 0, :], dtype=xp.bool)
        silent = [policy.silent_on(_of_head(stats, h)) for h, policy in enumerate(self.policies)]
        return xp.stack([never if rows is None else rows for rows in silent], axis=-2)

    def misfit(self, rows: tuple[int, ...]) -> str | None:
        """Ask each head's policy about the rows of one head."""
        of_head = (*rows[:-2], *rows[-1:])
        said = (policy.misfit(of_head) for policy in self.policies)
        return next((f"{one} of one head" for one in said if one is not None), None)

    def for_layer(self, index: int) -> Policy:
        """Resolve each head's policy."""
        return PerHead(tuple(policy.for_layer(index) for policy in self.policies))

    def __call__(self, stats: RowStats, stats_at: StatsAt | None = None) -> Array:
        """Ask each head's policy about its own rows."""
        shape = stats.maximum.shape
        if len(shape) < 2 or shape[-2] != len(self.policies):
            raise ValueError(
                f"PerHead holds {len(self.policies)} policies, but the rows' shape {tuple(shape)} "
                f"has no axis of that many heads before the last"
            )
        xp = namespace(stats.maximum)
        others = xp.ones_like(stats.maximum)

        chosen = [
            policy(_of_head(stats, h), None if stats_at is None else _AtHead(stats_at, others, h))
            for h, policy in enumerate(self.policies)
        ]
        return xp.stack([others[..., h, :] * beta for h, beta in enumerate(chosen)], axis=-2)


@dataclass(frozen=True, eq=False)
class _AtHead:
    """The statistics of one head's rows at the beta it is called with, the other heads' at 1: a `StatsAt`."""

    stats_at: StatsAt
    others: Array
    head: int

    @property
    def follows_beta(self) -> bool:
        """Whether the statistics of all heads do."""
        return getattr(self.stats_at, "follows_beta", False)

    def __call__(self, beta: Array) -> RowStats:
        """Return the statistics of the head's rows scaled by beta."""
        columns = [beta if h == self.head else self.others[..., h, :] for h in range(self.others.shape[-2])]
        return _of_head(self.stats_at(namespace(beta).stack(columns, axis=-2)), self.head)


def _of_head(stats: RowStats, head: int) -> RowStats:
    return stats.mapped(lambda field: field[..., head, :])


@dataclass(frozen=True, eq=False)
class PerLayer(_Members, Policy):
    """One policy for each layer of a model; `for_layer(i)` picks one, and only then can it be called."""

    learnable: ClassVar = ("policies",)

    policies: tuple[Policy, ...]

    def for_layer(self, index: int) -> Policy:
        """Return the policy of layer `index`."""
        if not 0 <= index < len(self.policies):
            raise ValueError(f"PerLayer holds {len(self.policies)} layers, got layer {index}")
        return self.policies[index].for_layer(index)

    def __call__(self, stats: RowStats, stats_at: StatsAt | None = None) -> Array:
        """Refuse: rows do not say which layer they are of."""
        raise ValueError("PerLayer must be resolved first: call policy.for_layer(i) with the layer's index")


@dataclass(frozen=True, eq=False)
class Detached(Policy):
    """The same beta, held constant to the gradient; made by `detach`."""

    learnable: ClassVar = ("policy",)

    policy: Policy

    def __post_init__(self) -> None:
        checked_policies("Detached", [self.policy])

    @property
    def needs(self) -> frozenset[str]:
        """What the wrapped policy needs."""
        return self.policy.needs

    @property
    def iterative(self) -> bool:
        """Whether the wrapped policy iterates."""
        return self.policy.iterative

    @property
    def fitted_range(self) -> dict[str, tuple[float, float]]:
        """The wrapped policy's."""
        return self.policy.fitted_range

    @property
    def silent_above(self) -> float | None:
        """The wrapped policy's."""
        return self.policy.silent_above

    @property
    def field_shapes(self) -> list[tuple[int, ...]]:
        """The wrapped policy's."""
        return self.policy.field_shapes

    def misfit(self, rows: tuple[int, ...]) -> str | None:
        """Ask the wrapped policy."""
        return self.policy.misfit(rows)

    def silent_on(self, stats: RowStats) -> Array | None:
        """Ask the wrapped policy."""
        return self.policy.silent_on(stats)

    def for_layer(self, index: int) -> Policy:
        """Resolve the wrapped policy."""
        return Detached(self.policy.for_layer(index))

    def __call__(self, stats: RowStats, stats_at: StatsAt | None = None) -> Array:
        """Return the wrapped policy's beta, without its gradient."""
        return stop_gradient(self.policy(stats.mapped(stop_gradient), stats_at))


def detach(policy: Policy) -> Detached:
    """Return the policy without its gradient: beta is a constant to the logits and to the policy's own parameters.

    Raises:
        TypeError: something that is no policy.

    >>> from sharpmax.core.policies import EntropyTarget
    >>> detach(EntropyTarget(0.5)).policy == EntropyTarget(0.5)
    True
    """
    return Detached(policy)
