"""Compute the values by cuDNN, with beta·q in place of q, through `jax.nn.dot_product_attention`.

    softmax(beta·scale·q·kᵀ)·v = attention(beta·q, k, v),    dL/dbeta = <dL/dq', q>  by JAX's own rule

True only where a logit is scale·<q, k> and nothing else. Folding beta into q rounds it once more to half precision,
which is no more than the naive product rounds its logits.

Alone it serves policies that read no logit: `Constant` and `LengthScaled` cost what plain attention costs. Its residual
LSE would give statistics too: H = LSE - scale·<q, attention(q, k, v := k)>. But cuDNN rounds that product to half
precision, and the entropy with it: by 0.02 nats at ordinary logits, and by 0.5 at logits of 200. What it then sharpens
errs beyond the budget (docs/log/jax.md).
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from sharpmax.core.policies import Constant
from sharpmax.jax.logits import Logits
from sharpmax.jax.request import Request

KERNEL: Literal["cudnn", "xla"] = "cudnn"
"""What `jax.nn.dot_product_attention` is asked for; "xla" checks the algebra on any device, densely."""


def refusal(request: Request) -> str | None:
    """Return why cuDNN cannot weight the values of this request, or None."""
    logits = request.logits
    if logits.left is not None or logits.right not in (None, 0):
        return "window is not honoured"
    queries, keys = logits.query.shape[2], logits.key.shape[2]
    if logits.right == 0 and queries != keys:
        return "cuDNN aligns a causal mask with the first key, so it needs as many queries as keys"
    if queries % 2 or keys % 2:
        return f"cuDNN takes even lengths, got {queries} and {keys}"
    if logits.query.dtype not in (jnp.bfloat16, jnp.float16):
        return f"cuDNN multiplies in half precision, and these are {logits.query.dtype}"
    if logits.query.dtype == jnp.float16 and not _never_sharpens(request.policy):
        return "float16 ends at 65,504, which beta·q may exceed"
    widths = {logits.query.shape[3], request.value.shape[3]}
    if len(widths) != 1 or max(widths) > 128 or max(widths) % 8:
        return f"cuDNN takes one width, a multiple of 8 up to 128, got {sorted(widths)}"
    return None


def refusal_of_statistics(request: Request) -> str | None:
    """Return why cuDNN cannot serve a request that reads the logits."""
    if request.reads_logits:
        return "half precision rounds attention(q, k, k), and the entropy with it, beyond the error budget"
    return None


def weighted(logits: Logits, value: Array, beta: Array) -> Array:
    """Return softmax(beta·e)·v, (B, H, Lq, Dv)."""
    q, k, v = (array.swapaxes(1, 2) for array in (logits.query, logits.key, value))
    scaled = (q * beta.swapaxes(1, 2)[..., None]).astype(q.dtype)
    output = jax.nn.dot_product_attention(
        scaled, k, v, scale=logits.scale, is_causal=logits.right == 0, implementation=KERNEL
    )
    return output.swapaxes(1, 2)


def _never_sharpens(policy: Any) -> bool:
    """Tell whether beta is known to be at most 1, so that beta·q is in range where q is."""
    beta = policy.inverse_temperature if isinstance(policy, Constant) else None
    return isinstance(beta, int | float) and beta <= 1
