"""Judge a result before it is timed: the last rows of the first and last head, against the same function in float64.

A contestant may err, in norm, twice what attention as people write it errs (products in the inputs' dtype, weights in
float32, dense), plus the rounding band of the contract suite: one rounding of the result, and four in float32 of the
largest logit. Output and gradient of a query depend on its own row alone, so a few rows judge both.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from sharpmax import PAPER, Policy, detach, entropy, softmax
from sharpmax.bench.random_policies import of_heads
from sharpmax.core.normalisers import Entmax

ROWS = 64
entmax15 = Entmax(1.5)


def _attention(weights: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda logits, v: weights(logits).to(v.dtype) @ v


COMPUTED: dict[str, Callable[[Any, Any], Any]] = {
    "plain": _attention(lambda logits: logits.softmax(-1)),
    "sharpened": _attention(softmax),
    "detached": _attention(lambda logits: softmax(logits, detach(PAPER))),
    "entmax": _attention(entmax15),
    "entropy": lambda logits, v: entropy(logits)[..., None],
}
"""What a contestant may compute, from dense logits and values."""


def error_of(
    kind: str,
    result: Any,
    tensors: Any,
    *,
    is_causal: bool,
    policy: Policy | None = None,
    gradient: Any = None,
    mask: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
) -> float:
    """Return the error of a result in norm, relative; `result` is an output, or dq of that output's `gradient`.

    A `policy` is that of the result, in the place of a kind; its arrays have a number for every head.

    Raises:
        ArithmeticError: it is more than that allows.
    """
    heads = tensors[0].shape[1]
    groups, judged_heads = heads // tensors[1].shape[1], sorted({0, heads - 1})

    def keep(x: Any) -> Any:
        return x.detach()[:1, judged_heads, -ROWS:]

    q = keep(tensors[0])
    k, v = (x.detach()[:1, [head // groups for head in judged_heads]] for x in tensors[1:])
    computed = COMPUTED[kind] if policy is None else _attention(partial(softmax, policy=of_heads(policy, judged_heads)))
    dO = None if gradient is None else keep(gradient)

    def dense(q: Any, k: Any, v: Any, dO: Any) -> tuple[Any, float]:
        with torch.enable_grad():
            q = q.requires_grad_(dO is not None)
            logits = (q @ k.mT).to(torch.promote_types(q.dtype, torch.float32)) * q.shape[3] ** -0.5
            logits = logits if softcap is None else softcap * (logits / softcap).tanh()
            if mask is not None:
                logits = logits.masked_fill(~keep(mask.expand(-1, heads, -1, -1)), -torch.inf)
            if is_causal:
                behind = torch.arange(q.shape[2], device=q.device)[:, None] + k.shape[2] - q.shape[2]
                logits = logits.masked_fill(torch.arange(k.shape[2], device=q.device) > behind, -torch.inf)
            largest = float(logits.detach().max())
            if sinks is not None:
                sink = sinks[judged_heads, None, None].to(logits.dtype).expand(*logits.shape[:3], 1)
                logits, v = torch.cat([logits, sink], -1), torch.nn.functional.pad(v, (0, 0, 0, 1))
            output = computed(logits, v)
            judged = output if dO is None else torch.autograd.grad(output, q, dO)[0]
            return judged.detach().double(), largest

    exact, largest = dense(*(None if x is None else x.double() for x in (q, k, v, dO)))
    low, _ = dense(q, k, v, dO)
    error, spent = (float((x - exact).norm() / exact.norm()) for x in (keep(result).double(), low))
    allowed = 2 * spent + torch.finfo(q.dtype).eps / 2 + 4 * torch.finfo(torch.float32).eps * max(1.0, largest)
    if not error <= allowed:
        raise ArithmeticError(f"errs by {error:.1e}, at most {allowed:.1e} is allowed; not timed")
    return error
