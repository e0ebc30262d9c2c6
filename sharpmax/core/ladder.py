"""Choose the implementation that serves: the fastest that does not refuse, or the one named, which serves or raises."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple


class Choice(NamedTuple):
    """Which implementation serves a request, and why each one before it on the ladder does not."""

    implementation: str
    refused: dict[str, str]


def check_implementation(ladder: Collection[str], implementation: str | None) -> None:
    """Raise ValueError for a name that is not on the ladder."""
    if implementation is not None and implementation not in list(ladder):
        raise ValueError(f"implementation must be one of {', '.join(ladder)} or None, got {implementation!r}")


def choose_implementation(
    ladder: Mapping[str, Any],
    request: Any,
    implementation: str | None,
    unasked: Callable[[str], str | None] = lambda name: None,
) -> Choice:
    """Choose by name, fastest first; each entry has `refusal(request)`: why it cannot serve, or None.

    `unasked` says why one that could serve does so only when it is named.

    Raises:
        ValueError: a name that is not on the ladder.
        NotImplementedError: the one named, or every one, refuses; the message says why.
    """
    check_implementation(ladder, implementation)
    if implementation is not None:
        reason = ladder[implementation].refusal(request)
        if reason is not None:
            raise NotImplementedError(f"implementation {implementation!r} cannot serve this: {reason}")
        return Choice(implementation, {})
    refused: dict[str, str] = {}
    for name, module in ladder.items():
        reason = module.refusal(request) or unasked(name)
        if reason is None:
            return Choice(name, refused)
        refused[name] = reason
    raise NotImplementedError("no implementation can serve this: " + "; ".join(f"{n}: {r}" for n, r in refused.items()))
