"""Decide what serves a request: the implementation, its code path, and why each faster one refuses.

All of it stands here: an implementation executes the plan it is given, an operator only registers. Rules read shapes,
dtypes, devices and the policy's own numbers; of values, only whether one is NaN or inf ('stock'). What else the values
decide, the device decides by itself (`plan.ON_DEVICE`).

    plan_of(request, name)     the plan of a call, made once
    resolved(plan, request)    the same, down to the kernels that an operator chooses when it runs
    path_of_fused, path_of_sharpened, statistics_on_hopper     that choice, on the tensors themselves
    kernels_serve_pages        who serves a paged cache
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from sharpmax.core.arrays import may_hold_nan
from sharpmax.core.ladder import choose_implementation
from sharpmax.torch import plan as paths
from sharpmax.torch.device import capability, multiprocessors
from sharpmax.torch.plan import Plan
from sharpmax.torch.policy_kinds import (
    LARGE_BETA,
    LENGTH,
    LOG_LINEAR,
    SOLVED,
    KernelPolicy,
    beta_range,
    constant_beta,
    is_rowwise,
    kernel_kind,
    kernel_policy,
    numbers_of_now,
)
from sharpmax.torch.request import Request
from sharpmax.torch.torch_internals import in_forward_mode, is_traced
from sharpmax.torch.triton.availability import interpreted, why_absent

if TYPE_CHECKING:
    from sharpmax.torch.paged.pages import PagedRequest

HALF = (torch.float16, torch.bfloat16)
WIDEST, MOST_HEADS = 256, 65535  # of our kernels: a head's width, and heads in a batch, which are a grid's height
MOST_BETA = 1e6  # of logits up to 3e32, which float32 still holds
LEAST_SCALE = 2.0**-45  # Hopper's kernels mask a product by -2^60 before it is scaled: that must still weigh nothing
WIDEST_SINGLE = 64  # of a head, in float32: 'triton' is 1.2 times as fast as 'chunked' at 64, and 0.4 times at 128

MOST_DECODED = 2**24  # logits of all sequences at once, on a CPU: beyond 64 MB they come in chunks

# Of the Hopper kernels.
SHORTEST = {64: 2048, 128: 1024}  # keys, by width: below, a tile's start and end cost more than it gains
STATISTICS_TILE = 256  # queries in a tile of the statistics kernel
MOST_UNEVEN = 1.25  # the largest share of the work that a multiprocessor may get, over the mean
LARGEST = 2**31  # numbers in a head of queries: an output is written 32 bits from where its head begins
LARGE = 2**28  # bytes of query from which one key head alone fills the device, and four bytes per row are felt
# Products of numbers in q·k, masked or not, from which a sample of the rows pays (0.15 ms), and leaders do (1 ms).
WORTH_SAMPLING, WORTH_LEADERS = 2**36, 2**38

NO_DROPOUT = "dropout is drawn by 'eager' only"
NO_TANGENTS = "forward-mode derivatives are taken by 'eager' only"
NO_FUNCTIONAL_GRADIENT = "derivatives of torch.func do not reach our operators' gradients; 'eager' has no operator"
NO_EMPTY_AXIS = "a tensor with an axis of length 0 is served by 'eager'"
ALIGNED_WITH_FIRST_KEY = (
    "PyTorch aligns a causal mask with the first key; with as many queries as keys, or one, it is the same"
)
ABSENT = why_absent()
"""Why our Triton kernels are not there, or None."""


def plan_of(request: Request, implementation: str | None = None) -> Plan:
    """Return the plan of the named implementation, or of the fastest that serves.

    Raises:
        ValueError: a name that is not on the ladder.
        NotImplementedError: the one named, or every one, refuses; the message says why.
    """
    key = _key(request, implementation)
    if key is None:
        return _made(request, implementation)
    policy, plan = _remembered.get(key, (None, None))
    if plan is None or policy is not request.policy or not _still_holds(plan, policy):
        plan = _made(request, implementation)
        if len(_remembered) >= MOST_REMEMBERED:
            _remembered.clear()
        _remembered[key] = (request.policy, plan)
    return plan


_remembered: dict[tuple[object, ...], tuple[object, Plan]] = {}
MOST_REMEMBERED = 4096


def _still_holds(plan: Plan, policy: object) -> bool:
    return plan.policy is None or plan.policy.numbers is numbers_of_now(policy)


def _made(request: Request, implementation: str | None) -> Plan:
    name, refused = choose_implementation(LADDER, request, implementation, lambda name: _unasked(name, request))
    path, policy = LADDER[name].path(request)
    return Plan(name, path, refused, policy)


def _key(request: Request, implementation: str | None) -> tuple[object, ...] | None:
    """Return all that the plan of a plain call on a GPU depends on, or None where it depends on more.

    On a CPU it depends on values too. One query is served alike however many keys there are.
    """
    query, key = request.query, request.key
    if query.device.type != "cuda" or request.documents is not None or request.is_empty or interpreted():
        return None
    if torch.compiler.is_compiling() or is_traced(query, key) or in_forward_mode():
        return None
    return (
        implementation, id(request.policy), query.shape, key.shape[1], key.shape[2] if query.shape[2] > 1 else 0,
        request.value.shape[3], query.dtype, query.device, request.left, request.right, request.scale,
        request.softcap, request.mask is None, request.bias is None, request.sinks is None, request.dropout,
        request.return_stats, request.asked, request.needs_gradient, torch.is_grad_enabled(),
    )  # fmt: skip


def resolved(plan: Plan, request: Request) -> Plan:
    """Return the plan with the code path that the operator will choose, if the tensors are there to tell."""
    tensors = request.packed()
    if plan.path != paths.WITHOUT_GRADIENT or torch.compiler.is_compiling() or is_traced(*tensors):
        return plan
    kind = kernel_kind(request.policy)
    if plan.implementation == "hybrid":
        return plan._replace(path=path_of_sharpened(*tensors, kind=kind))
    path = path_of_fused(
        *tensors, left=request.left, right=request.right, store=request.return_stats, kind=kind,
        is_bare=request.mask is None and request.softcap is None and request.sinks is None,
    )  # fmt: skip
    return plan._replace(path=path)


def packed_documents_refusal(device: torch.device, implementation: str | None) -> str | None:
    """Say why a row of packed documents cannot be one call, before any request is made of it."""
    if implementation not in (None, "hybrid"):
        return f"{implementation!r} was asked for, and packed documents are one call of 'hybrid' only"
    if device.type != "cuda" and implementation is None:
        return INTERPRETED_WHEN_NAMED
    return None


def plan_of_documents(request: Request) -> Plan:
    """Return the plan of a row of packed documents, of which 'hybrid' did not refuse the request."""
    path, policy = _hybrid_path(request)
    return Plan("hybrid", path, {}, policy)


def kernels_serve_pages(request: "PagedRequest", implementation: str | None) -> bool:
    """Tell whether our kernels serve a call on a paged cache, or PyTorch on gathered keys.

    Raises:
        NotImplementedError: the one that was named, or the one that is left inside a CUDA graph, cannot serve.
    """
    refusal = _pages_refusal(request)
    if implementation == "triton" and refusal is not None:
        raise NotImplementedError(f"paged attention by 'triton': {refusal}")
    # As Python, which is how tests run a kernel without a GPU, it runs only where it is named.
    by_kernels = implementation == "triton" or (implementation is None and refusal is None and request.query.is_cuda)
    if not by_kernels and request.query.is_cuda and torch.cuda.is_current_stream_capturing():
        raise NotImplementedError(
            "paged attention by PyTorch reads lengths on the host, which no CUDA graph can; the kernels refuse: "
            f"{refusal or implementation}"
        )
    return by_kernels


# --- while an operator runs


def path_of_fused(
    query: Tensor, key: Tensor, value: Tensor, *, left: int | None, right: int | None, is_bare: bool, store: bool,
    kind: int,
) -> str:  # fmt: skip
    """Choose among the kernels of 'triton' without a gradient; `is_bare`: no mask, softcap or sinks."""
    if query.shape[2] == 1 and left is None and (right is None or right >= 0):
        return paths.DECODE
    if kind == SOLVED:
        return paths.SOLVED_FIRST
    if left is None and is_bare and not store and attention_on_hopper(query, key, value):
        return path_on_hopper(query, key, kind)
    return paths.FUSED


def path_of_sharpened(query: Tensor, key: Tensor, value: Tensor, *, kind: int) -> str:
    """Choose among the kernels of 'hybrid' without a gradient or statistics."""
    if kind not in (LENGTH, SOLVED) and attention_on_hopper(query, key, value):
        return path_on_hopper(query, key, kind)
    return paths.SHARPENED_QUERY_PER_HEAD if _is_large(query) else paths.SHARPENED_QUERY


def path_on_hopper(query: Tensor, key: Tensor, kind: int) -> str:
    """Choose how many of the Hopper kernels to launch."""
    products = query.numel() * key.shape[2]
    if products < WORTH_SAMPLING or kind == LOG_LINEAR:  # whose beta is hardly ever 1
        return paths.TWO_PASSES
    return paths.LEADERS if products >= WORTH_LEADERS and not _is_large(query) else paths.SPECULATIVE


def attention_on_hopper(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Tell whether the attention kernels for Hopper serve these tensors, and are the fastest."""
    is_one_width = query.shape[3] == value.shape[3]
    is_small = query.shape[2] * query.shape[3] <= LARGEST
    return is_one_width and is_small and statistics_on_hopper(query, key) and copied_in_tiles(value)


def statistics_on_hopper(query: Tensor, key: Tensor) -> bool:
    """Tell whether the statistics kernel for Hopper serves these tensors, and is the fastest."""
    if interpreted() or query.dtype not in HALF or query.shape[3] not in SHORTEST:
        return False
    if multiprocessors(query.device) == 0 or key.shape[2] < SHORTEST[query.shape[3]]:
        return False
    pairs = query.shape[0] * query.shape[1] * -(-query.shape[2] // (2 * STATISTICS_TILE))  # a long tile and a short one
    shares = pairs / multiprocessors(query.device)
    return math.ceil(shares) <= MOST_UNEVEN * shares and copied_in_tiles(query, key)


def copied_in_tiles(*tensors: Tensor) -> bool:
    """Tell whether the copy engine takes these tensors."""
    return all(x.data_ptr() % 16 == 0 and all(s % 8 == 0 for s in x.stride()[:3]) for x in tensors)


def _is_large(query: Tensor) -> bool:
    return query.numel() * query.element_size() > LARGE


# --- refusals and code paths of each implementation

INTERPRETED_WHEN_NAMED = "Triton's interpreter is for tests: it serves only when named"


def _unasked(name: str, request: Request) -> str | None:
    """Say why an implementation that could serve does so only when it is named."""
    if name in ("hybrid", "triton") and request.query.device.type != "cuda":
        return INTERPRETED_WHEN_NAMED
    if name == "stock" and request.query.device.type == "cpu" and request.reads_logits:
        traced = torch.compiler.is_compiling() or is_traced(request.query, request.key, request.value)
        return (
            "'chunked' is faster on a CPU where logits are read"
            if not traced and _chunked_refusal(request) is None
            else None
        )
    if name != "triton" or request.query.dtype != torch.float32 or request.rows[2] == 1:
        return None
    if _stock_refusal(request) is None:
        return "'stock' is faster in float32, on several queries"
    if request.query.shape[3] > WIDEST_SINGLE:
        return "'chunked' is faster in float32, on several queries of wide heads"
    return None


def _kernels_refusal(request: Request) -> str | None:
    """Say what our Triton kernels cannot compute, or None."""
    if ABSENT is not None:
        return ABSENT
    if request.query.device.type != "cuda" and not interpreted():
        return f"the kernels run on CUDA devices, not on {request.query.device.type}"
    if interpreted() and request.query.dtype == torch.bfloat16:
        return "Triton's interpreter multiplies bfloat16 as integers"
    if request.bias is not None:
        return "bias is not honoured by the kernels"
    if request.needs_gradient and getattr(request.policy, "iterative", False):
        if request.query.dtype == torch.float32:
            return "the float32 gradient through a solved beta is over its error budget; 'chunked' keeps it"
        if request.softcap is not None:
            return "the gradient of a beta that is solved for does not go through the kernels' softcap"
    if (reason := _chunked_refusal(request)) is not None:
        return reason
    if request.rows[0] * request.rows[1] > MOST_HEADS:
        return f"{request.rows[0]} · {request.rows[1]} heads: a grid is {MOST_HEADS:,} high at most"
    if request.query.dtype not in (*HALF, torch.float32):
        return f"the kernels compute in float32 at most, got {request.query.dtype}"
    if max(request.query.shape[3], request.value.shape[3]) > WIDEST:
        return f"heads wider than {WIDEST} do not fit the tiles"
    if request.scale <= 0:
        return "a scale that is not positive turns the running maximum round"
    least, most = beta_range(request.policy)
    if request.scale * least < LEAST_SCALE:
        return f"a scale below {LEAST_SCALE:.1e}, or one that beta takes there, would bring masked keys back"
    if most > MOST_BETA:
        return f"a beta above {MOST_BETA:.0e} may overflow: the kernels scale the logits before they shift them"
    if "minimum" in request.extra:
        return "minimum is not computed by the kernels"
    return None


def _pages_refusal(request: "PagedRequest") -> str | None:
    """Say why the paged kernels cannot serve, or None. Where they can, they are the faster."""
    query, pages = request.query, request.pages
    if ABSENT is not None:
        return ABSENT
    if not query.is_cuda and not interpreted():
        return f"inputs on {query.device.type}; it runs on a GPU"
    if 0 in query.shape:
        return "no queries"
    if query.dtype not in (*HALF, torch.float32):
        return f"{query.dtype} inputs; it takes float16, bfloat16 and float32"
    if max(query.shape[2], pages.value.shape[3]) > WIDEST:
        return f"heads of width {max(query.shape[2], pages.value.shape[3])}; it takes {WIDEST} at most"
    if any(x.stride(-1) != 1 for x in (query, pages.key, pages.value, pages.table, pages.lengths, request.ends)):
        return "a last axis that is not contiguous"
    if getattr(request.policy, "iterative", True):
        return f"{type(request.policy).__name__}, which iterates over the rows or is a plain callable"
    return None


def _hybrid_refusal(request: Request) -> str | None:
    """Say what our statistics kernel, or PyTorch's attention after it, does not compute."""
    reason = _kernels_refusal(request)
    if reason is not None:
        return reason
    is_masked_plainly = request.mask is not None and _is_constant(request) and request.right is None
    for name in ("mask", "softcap", "sinks"):
        if name == "mask" and is_masked_plainly:
            continue
        if getattr(request, name) is not None:
            return f"PyTorch's fastest kernels and ours for Hopper take no {name}; 'triton' does"
    if request.query.dtype not in HALF:
        return "PyTorch's fast kernels take half precision; 'triton' computes in float32"
    if request.left is not None or request.right not in (None, 0):
        return "PyTorch's fast kernels know no window"
    if request.right == 0 and request.offset != 0 and request.rows[2] != 1:
        return ALIGNED_WITH_FIRST_KEY
    is_decoded = request.rows[2] == 1 and not request.needs_gradient and not _is_constant(request)
    if is_decoded and kernel_kind(request.policy) != 0:
        return "one query is decoded by 'triton', which reads the keys once"
    if request.documents is not None:
        if request.right != 0:
            return "packed documents are causal, or go in batches"
        if request.query.device.type == "cuda":
            if not torch.backends.cuda.flash_sdp_enabled():  # type: ignore[no-untyped-call]
                return "PyTorch's FlashAttention is switched off"
            if capability(request.query.device) < (8, 0):
                return "PyTorch's FlashAttention is for GPUs of capability 8.0 or more"
    widths = {request.query.shape[3], request.value.shape[3]}
    if len(widths) > 1 or max(widths) % 8:
        return "PyTorch's fast kernels take one width for all, a multiple of 8"
    return None


def _stock_refusal(request: Request) -> str | None:
    """Say what breaks the identity of 'stock', or what PyTorch's kernels do not compute."""
    for name in ("mask", "bias", "softcap", "sinks"):
        if getattr(request, name) is not None:
            return f"{name} is not honoured: the identity H = LSE - scale·<q, attention(q, k, k)> needs bare logits"
    if request.dropout:
        return NO_DROPOUT
    if request.has_tangent:
        return NO_TANGENTS
    if request.has_second_gradient:
        return "PyTorch's kernels have no second derivative; 'eager' has"
    if request.is_empty:
        return NO_EMPTY_AXIS
    if request.left is not None or request.right not in (None, 0):
        return "window is not honoured"
    if request.right == 0 and request.offset != 0 and request.rows[2] != 1:
        return ALIGNED_WITH_FIRST_KEY
    if request.right == 0 and request.scale < torch.finfo(torch.float32).tiny:
        return "PyTorch's kernels multiply the -inf of a causal mask by the scale, which must be positive"
    if request.extra:
        return f"{', '.join(sorted(request.extra))}: the identity gives entropy and logsumexp"
    if request.wanted & {"maximum"} and not request.return_stats:
        return "the kernels do not return the maximum"
    if getattr(request.policy, "iterative", True) and request.wanted & {"entropy"}:
        return "an iterative policy, or a bare callable, may ask for more than the identity gives"
    if request.query.dtype in HALF:
        return "half precision rounds attention(q, k, k), and the entropy with it, beyond the error budget"
    if request.query.device.type != "cpu" and request.query.dtype != torch.float32:
        return f"no kernel for {request.query.dtype} on {request.query.device.type}"
    if request.query.device.type == "cuda" and request.value.shape[3] != request.query.shape[3]:
        return "on a GPU PyTorch's kernel errs beyond the budget where values are not as wide as keys"
    if request.query.device.type not in ("cpu", "cuda"):
        return f"no kernel that returns the logsumexp on {request.query.device.type}"
    if request.return_stats:
        return "the kernels do not return the maximum, which return_stats promises"
    if request.right == 0 and request.rows[2] > 1 and may_hold_nan(request.value.detach()):
        return "a value of NaN or inf would reach the rows that do not see it; 'chunked' and 'eager' leave it out"
    if may_hold_nan(request.key.detach()):
        return "a key of NaN or inf may hide itself by a logit of -inf, which is counted by 'chunked' and 'eager'"
    return None


def _chunked_refusal(request: Request) -> str | None:
    """Say what no operator of ours computes: dropout, two kinds of derivatives, and empty tensors."""
    if request.dropout:
        return NO_DROPOUT
    if request.has_tangent:
        return NO_TANGENTS
    if request.has_functional_gradient:
        return NO_FUNCTIONAL_GRADIENT
    return NO_EMPTY_AXIS if request.is_empty else None


def _hybrid_path(request: Request) -> tuple[str, KernelPolicy | None]:
    if _is_constant(request):
        return paths.STOCK, None
    if request.query.dtype == torch.float16 and beta_range(request.policy)[1] > LARGE_BETA:
        return paths.THREE_STEPS, None  # which keeps beta·q in range
    policy = kernel_policy(request.policy, request.query.device, request.rows[1])
    if policy is None or (policy.kind == LENGTH and (request.needs_gradient or request.documents is not None)):
        return paths.THREE_STEPS, None
    if request.documents is None and not (request.needs_gradient or request.return_stats):
        return paths.WITHOUT_GRADIENT, policy
    if policy.kind == SOLVED:
        return paths.THREE_STEPS, None
    return paths.SHARPENED_QUERY, policy


def _is_constant(request: Request) -> bool:
    """Tell whether beta is one number for all rows, so that PyTorch's attention alone serves."""
    return constant_beta(request.policy) is not None


def _triton_path(request: Request) -> tuple[str, KernelPolicy | None]:
    device, heads = request.query.device, request.rows[1]
    policy = None if request.needs_gradient else kernel_policy(request.policy, device, heads)
    return (paths.THREE_STEPS if policy is None else paths.WITHOUT_GRADIENT), policy


def _chunked_path(request: Request) -> tuple[str, None]:
    traced = torch.compiler.is_compiling() or is_traced(request.query, request.key, request.value)
    if traced or request.needs_gradient or not is_rowwise(request.policy, request.rows[1]):
        return paths.THREE_STEPS, None
    sees_all = request.left is None and (request.right is None or request.right >= 0)
    is_bare = request.bias is None and request.softcap is None and request.sinks is None and not request.return_stats
    is_short = request.query.shape[0] * request.query.shape[1] * request.key.shape[2] <= MOST_DECODED
    is_one_query = request.query.device.type == "cpu" and request.rows[2] == 1
    return (paths.ONE_QUERY if is_one_query and sees_all and is_bare and is_short else paths.ONE_PASS), None


class Rules(NamedTuple):
    """When an implementation refuses a request, and by which code path it serves one."""

    refusal: Callable[[Request], str | None]
    path: Callable[[Request], tuple[str, KernelPolicy | None]]


LADDER = {
    "hybrid": Rules(_hybrid_refusal, _hybrid_path),
    "triton": Rules(_kernels_refusal, _triton_path),
    "stock": Rules(_stock_refusal, lambda request: (paths.THREE_STEPS, None)),
    "chunked": Rules(_chunked_refusal, _chunked_path),
    "eager": Rules(lambda request: None, lambda request: (paths.DENSE, None)),
}
"""Implementations by name, fastest first."""

IMPLEMENTATIONS = tuple(name for name in LADDER if ABSENT is None or name not in ("hybrid", "triton"))
"""The names of those that are there."""
