"""The call: attention whose rows choose their own temperature, by whichever implementation is fastest and can serve.

Implementations stand side by side in this folder and never import one another. Each offers

    refusal(request) -> str | None            why it cannot serve this request, before any work
    attend(request) -> (output, RowStats)
    statistics(request) -> RowStats

`implementation=None` walks the ladder, fastest first, and takes the first that does not refuse; one that is named
serves or raises. Nothing is ever dropped in silence.
"""

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sharpmax.core.ladder import Choice, choose_implementation
from sharpmax.core.masks import Window
from sharpmax.core.policies import PAPER, Constant
from sharpmax.core.softmax import say_if_silent
from sharpmax.core.stats import RowStats, checked_extra
from sharpmax.torch import eager, stock
from sharpmax.torch.chunked import attention as chunked
from sharpmax.torch.request import Request, validated
from sharpmax.torch.triton.version import why_absent

KERNELS = ("hybrid", "triton")


class Absent(NamedTuple):
    """Stands on the ladder for an implementation that is not there, and refuses every request."""

    why: str

    def refusal(self, request: Request) -> str:
        """Return why it is not there."""
        return self.why


def _kernels() -> dict[str, Any]:
    """Return our kernels by name; where there is no Triton that runs them, why."""
    if (why := why_absent()) is not None:
        return dict.fromkeys(KERNELS, Absent(why))
    from sharpmax.torch.triton import attention as triton_attention
    from sharpmax.torch.triton import hybrid

    return {"hybrid": hybrid, "triton": triton_attention}


LADDER: dict[str, Any] = {**_kernels(), "stock": stock, "chunked": chunked, "eager": eager}
"""Implementations by name, fastest first."""

IMPLEMENTATIONS = tuple(name for name, module in LADDER.items() if not isinstance(module, Absent))
"""The names of those that are there."""

WIDEST_SINGLE = 64  # of a head, in float32: 'triton' is 1.2 times as fast as 'chunked' at 64, and 0.4 times at 128


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    policy: Any = PAPER,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: Window = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    implementation: str | None = None,
    return_stats: bool = False,
) -> Any:
    """Attention of query (B, H, Lq, D) on key (B, Hkv, Lk, D) and value (B, Hkv, Lk, Dv); output (B, H, Lq, Dv).

    As `scaled_dot_product_attention`, with a temperature a row that `policy` chooses from the row's statistics. H is a
    multiple of Hkv. `mask` is boolean, True = visible, and `bias` is added to the logits; both broadcast to
    (B, H, Lq, Lk). `is_causal` and `window` align the last query with the last key; an int W shows the last W keys, a
    pair (left, right) is inclusive. `scale` is 1/sqrt(D) unless given. `softcap` c makes the logits c·tanh(e/c), before
    bias and beta. `sinks` (H,) adds one item of that logit and zero value to each row. `dropout` is applied to the
    weights, from torch's global generator.

    `return_stats=True` returns `(output, RowStats)`: entropy, logsumexp, maximum, count and inverse_temperature, each
    (B, H, Lq) in float32 or wider, with gradients. A query that sees no key gives 0.

    `implementation` names one of `IMPLEMENTATIONS`; None takes the fastest that can serve, as `which_implementation`
    tells.

    Raises:
        TypeError, ValueError: arguments that do not fit together, before any work.
        NotImplementedError: the named implementation cannot serve this request; the message says why.

    >>> q = torch.randn(1, 4, 8, 16); k = torch.randn(1, 2, 8, 16)
    >>> tuple(attention(q, k, k, is_causal=True).shape)
    (1, 4, 8, 16)
    """
    request = validated(
        query,
        key,
        value,
        policy=policy,
        mask=mask,
        bias=bias,
        is_causal=is_causal,
        scale=scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
        dropout=dropout,
        return_stats=return_stats,
    )
    module = LADDER[_choose(request, implementation).implementation]
    # The implementation's own products must not be cast a second time.
    with torch.autocast(query.device.type, enabled=False):
        output, stats = module.attend(request)
    if not return_stats:
        return output
    say_if_silent(policy, stats)
    return output, stats


def row_stats(
    query: Tensor,
    key: Tensor,
    *,
    extra: frozenset[str] = frozenset(),
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: Window = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    implementation: str | None = None,
) -> RowStats:
    """Return the statistics of attention's rows without attending: arguments and errors as in `attention`.

    `extra` may name "minimum" and "variance". Differentiable; O(n) memory but by 'eager'.

    >>> q = torch.zeros(1, 1, 1, 8); k = torch.zeros(1, 1, 5, 8)
    >>> round(row_stats(q, k).entropy.exp().item(), 4)
    5.0
    """
    request = validated(
        query,
        key,
        key,
        policy=Constant(1.0),
        asked=checked_extra(extra),
        mask=mask,
        bias=bias,
        is_causal=is_causal,
        scale=scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
        dropout=0.0,
        return_stats=True,
    )
    module = LADDER[_choose(request, implementation).implementation]
    with torch.autocast(query.device.type, enabled=False):
        stats: RowStats = module.statistics(request)
    return stats


def which_implementation(query: Tensor, key: Tensor, value: Tensor, **arguments: Any) -> Choice:
    """Tell which implementation `attention` takes for these arguments, and why the faster ones refuse.

    >>> x = torch.randn(1, 1, 4, 8, dtype=torch.float64)
    >>> which_implementation(x, x, x, softcap=30.0).implementation
    'chunked'
    """
    given: dict[str, Any] = {
        **dict.fromkeys(("mask", "bias", "scale", "window", "softcap", "sinks")),
        **{"policy": PAPER, "is_causal": False, "dropout": 0.0, "return_stats": False},
    }
    inspect.signature(attention).bind(query, key, value, **arguments)  # names what `attention` does not take
    implementation = arguments.pop("implementation", None)
    return _choose(validated(query, key, value, **{**given, **arguments}), implementation)


def _choose(request: Request, implementation: str | None) -> Choice:
    def unasked(name: str) -> str | None:
        if name in KERNELS and request.query.device.type != "cuda":
            return "Triton's interpreter is for tests: it serves only when named"
        if name != "triton" or request.query.dtype != torch.float32:
            return None
        if request.rows[2] > 1:
            if stock.refusal(request) is None:
                return "'stock' is faster in float32, on several queries"
            if request.query.shape[3] > WIDEST_SINGLE:
                return "'chunked' is faster in float32, on several queries of wide heads"
        return None

    return choose_implementation(LADDER, request, implementation, unasked)
