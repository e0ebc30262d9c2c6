"""The call: attention whose rows choose their own temperature, by whichever implementation is fastest and can serve.

`dispatch` decides which implementation serves and by which code path, and returns a plan. The implementations stand
side by side in this folder and never import one another; each executes a plan:

    attend(request, plan) -> (output, RowStats)
    statistics(request) -> RowStats                 not in 'stock', which never returns them

`implementation=None` takes the fastest that does not refuse; one that is named serves or raises. No argument is ever
ignored.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sharpmax.core.masks import Window
from sharpmax.core.policies import PAPER, Constant, Policy
from sharpmax.core.softmax import say_if_silent
from sharpmax.core.stats import RowStats, checked_extra
from sharpmax.torch import eager, stock
from sharpmax.torch.chunked import attention as chunked
from sharpmax.torch.dispatch import ABSENT, plan_of, resolved
from sharpmax.torch.plan import Plan
from sharpmax.torch.request import Request, validated
from sharpmax.torch.shapes import Attended, Bias, Key, Mask, Query, Sinks, Value


def _modules() -> dict[str, Any]:
    """Return the modules that execute a plan, by the name of their implementation."""
    modules: dict[str, Any] = {"stock": stock, "chunked": chunked, "eager": eager}
    if ABSENT is None:
        from sharpmax.torch.triton import attention as triton_attention
        from sharpmax.torch.triton import hybrid

        modules |= {"hybrid": hybrid, "triton": triton_attention}
    return modules


MODULES = _modules()
PLAIN = Constant(1.0)  # one object, by which dispatch remembers its plans


def attention(
    query: Query, key: Key, value: Value, *, policy: Any = PAPER, mask: Mask = None, bias: Bias = None,
    is_causal: bool = False, scale: float | None = None, window: Window = None, softcap: float | None = None,
    sinks: Sinks = None, dropout: float = 0.0, implementation: str | None = None, return_stats: bool = False,
) -> Attended:  # fmt: skip
    """Attend with query (B, H, Lq, D) to key (B, Hkv, Lk, D) and value (B, Hkv, Lk, Dv); return (B, H, Lq, Dv).

    As `scaled_dot_product_attention`, with a temperature per row that `policy` chooses from the row's statistics. H is
    a multiple of Hkv. `mask` is boolean, True = visible, and `bias` is added to the logits; both broadcast to
    (B, H, Lq, Lk). `is_causal` and `window` align the last query with the last key; an int W shows the last W keys, a
    pair (left, right) is inclusive. `scale` is 1/sqrt(D) unless given. `softcap` c makes the logits c·tanh(e/c), before
    bias and beta. `sinks` (H,) adds one item of that logit and zero value to each row. `dropout` is applied to the
    weights, from torch's global generator.

    `return_stats=True` returns `(output, RowStats)`: entropy, logsumexp, maximum, count and inverse_temperature, each
    (B, H, Lq) in float32 or wider, with gradients. A query that sees no key gives 0.

    `implementation` names one of `IMPLEMENTATIONS`; None takes the fastest that can serve, as `which_implementation`
    tells. Under torch.vmap all but 'eager' run once per example, which PyTorch warns of; the batch axis is faster.

    Raises:
        TypeError, ValueError: arguments that do not fit together, before any work.
        NotImplementedError: the named implementation cannot serve this request; the message says why.

    >>> q = torch.randn(1, 4, 8, 16); k = torch.randn(1, 2, 8, 16)
    >>> tuple(attention(q, k, k, is_causal=True).shape)
    (1, 4, 8, 16)
    """
    request = validated(
        query, key, value, policy=policy, mask=mask, bias=bias, is_causal=is_causal, scale=scale, window=window,
        softcap=softcap, sinks=sinks, dropout=dropout, return_stats=return_stats,
    )  # fmt: skip
    output, stats = execute(plan_of(request, implementation), request)
    if not return_stats:
        return output
    if query.device.type == "cpu" or not getattr(policy, "_looked_at", False):
        say_if_silent(policy, stats)
        _note_looked_at(policy)
    return output, stats


def _note_looked_at(policy: Any) -> None:
    """Note that the rows of a policy were looked at: on a GPU once, because to look waits for the device."""
    if isinstance(policy, Policy) and not torch.compiler.is_compiling():
        object.__setattr__(policy, "_looked_at", True)


def row_stats(
    query: Query, key: Key, *, extra: frozenset[str] = frozenset(), mask: Mask = None, bias: Bias = None,
    is_causal: bool = False, scale: float | None = None, window: Window = None, softcap: float | None = None,
    sinks: Sinks = None, implementation: str | None = None,
) -> RowStats:  # fmt: skip
    """Return the statistics of attention's rows, each (batch, query head, query), without attending.

    `extra` may name "minimum" and "variance". Differentiable; O(n) memory but by 'eager'.

    Raises:
        TypeError, ValueError, NotImplementedError: as `attention`, whose arguments these are.

    >>> q = torch.zeros(1, 1, 1, 8); k = torch.zeros(1, 1, 5, 8)
    >>> round(row_stats(q, k).entropy.exp().item(), 4)
    5.0
    """
    request = validated(
        query, key, key, policy=PLAIN, asked=checked_extra(extra), mask=mask, bias=bias, is_causal=is_causal,
        scale=scale, window=window, softcap=softcap, sinks=sinks, return_stats=True,
    )  # fmt: skip
    return execute_statistics(plan_of(request, implementation), request)


def which_implementation(query: Query, key: Key, value: Value, **arguments: Any) -> Plan:
    """Return the plan of `attention` for these arguments: what runs, and why the faster implementations refuse.

    `implementation`, `path` and `refused` are its attributes; it prints as text.

    Raises:
        TypeError, ValueError, NotImplementedError: as `attention`, whose arguments these are.

    >>> x = torch.randn(1, 1, 4, 8, dtype=torch.float64)
    >>> which_implementation(x, x, x, softcap=30.0).implementation
    'chunked'
    >>> print(which_implementation(x, x, x, implementation="eager"))
    eager, dense: every logit at once, differentiated by autograd
    """
    inspect.signature(attention).bind(query, key, value, **arguments)  # names what `attention` does not take
    implementation = arguments.pop("implementation", None)
    request = validated(query, key, value, **arguments)
    return resolved(plan_of(request, implementation), request)


def execute(plan: Plan, request: Request) -> tuple[Tensor, RowStats]:
    """Return the output and the statistics, which may be empty unless the request asks for them."""
    result: tuple[Tensor, RowStats] = _without_autocast(MODULES[plan.implementation].attend, request, plan)
    return result


def execute_statistics(plan: Plan, request: Request) -> RowStats:
    """Return the statistics alone."""
    stats: RowStats = _without_autocast(MODULES[plan.implementation].statistics, request)
    return stats


def _without_autocast(function: Callable[..., Any], request: Request, *rest: Any) -> Any:
    """Call an implementation, whose own products must not be cast a second time."""
    device = request.query.device.type
    if not torch.is_autocast_enabled(device):  # entering the context takes the host longer than dispatch does
        return function(request, *rest)
    with torch.autocast(device, enabled=False):
        return function(request, *rest)
