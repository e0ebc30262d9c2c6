"""Decide what serves a request: which implementation, by which kernels, and why the faster ones do not.

    implementation    statistics                          values
    stock             count                               cudnn
    hybrid            pallas_mosaic or pallas_triton      cudnn
    pallas            pallas_mosaic or pallas_triton      pallas_triton
    chunked           chunked                             chunked
    xla               xla                                 xla, in the same dense program

Statistics are by `count` alone, without a kernel, wherever the policy reads no logit.

Implementations stand side by side in this folder and never import one another. `implementation=None` takes the first
that does not refuse; a named one serves or raises. The plan depends on shapes, dtypes, the kind of policy and the
device only, so it is made while tracing.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import Array

from sharpmax.core.ladder import choose_implementation
from sharpmax.core.softmax import say_if_silent
from sharpmax.core.stats import RowStats
from sharpmax.jax import stock, xla
from sharpmax.jax.chunked import attention as chunked
from sharpmax.jax.logits import Logits, count_alone, recounted
from sharpmax.jax.pallas import passes as pallas
from sharpmax.jax.pallas.hopper import mosaic_pipeline
from sharpmax.jax.request import Request
from sharpmax.jax.three_steps import Statistics, Weighted, attend_in_three_steps

LOWERING: str | None = None
"""Which Pallas kernels compute the statistics: "triton"; "mosaic", on any device, where they serve; or None for
Mosaic's on a Hopper GPU, else Triton's."""

STATISTICS: dict[str, Statistics] = {
    "count": count_alone,
    "pallas_mosaic": partial(pallas.row_statistics, by_mosaic=True),
    "pallas_triton": partial(pallas.row_statistics, by_mosaic=False),
    "chunked": chunked.row_statistics,
    "xla": xla.row_statistics,
}
"""The first pass, by the name of its kernels."""

COUNTED_BY_POSITION = ("count", "pallas_mosaic", "pallas_triton")
"""Those that count every key that mask and position show, whatever its logit."""

VALUES: dict[str, Weighted] = {"cudnn": stock.weighted, "pallas_triton": pallas.weighted, "chunked": chunked.weighted}
"""The second pass, by the name of its kernels."""


class Plan(NamedTuple):
    """What serves a request, and why each faster implementation does not; `print` it."""

    implementation: str
    refused: dict[str, str]
    statistics: str  # kernels of the first pass; "count": none, for no logit is read
    values: str  # kernels of the second pass

    @property
    def kernels(self) -> str:
        """Describe what runs."""
        return f"statistics by {self.statistics}, values by {self.values}"

    def __str__(self) -> str:
        refused = (f"not {name}: {reason}" for name, reason in self.refused.items())
        return "\n  ".join([f"{self.implementation}: {self.kernels}", *refused])


def plan(request: Request, implementation: str | None) -> Plan:
    """Choose the implementation and its kernels.

    Raises:
        ValueError: an unknown implementation.
        NotImplementedError: the one named, or every one, refuses; the message says why.
    """
    if implementation == "pallas_cudnn":  # the former name
        implementation = "hybrid"
    chosen = choose_implementation(LADDER, request, implementation, lambda name: _unasked(name, request))
    name = statistics = chosen.implementation
    if name in ("hybrid", "pallas"):
        # The variance, which a policy that solves for beta asks for, has a kernel in Triton's lowering alone.
        statistics = "pallas_triton" if request.extra else _lowering(request.logits)
    if name != "xla" and not request.reads_logits:
        statistics = "count"
    values = {"stock": "cudnn", "hybrid": "cudnn", "pallas": "pallas_triton"}.get(name, name)
    return Plan(name, chosen.refused, statistics, values)


def attend(request: Request, implementation: str | None) -> tuple[Array, RowStats]:
    """Serve a validated request; output (B, T, N, Hv)."""
    chosen = plan(request, implementation)
    if chosen.implementation == "xla":
        output, stats = xla.attend(request)
    else:
        output, stats = attend_in_three_steps(
            request,
            STATISTICS[chosen.statistics],
            VALUES[chosen.values],
            by_position=chosen.statistics in COUNTED_BY_POSITION,
        )
    if request.return_stats:
        say_if_silent(request.policy, stats)
    return output.swapaxes(1, 2), stats


def row_statistics(request: Request, implementation: str | None) -> RowStats:
    """Serve a validated request for statistics alone."""
    chosen = plan(request, implementation).statistics
    stats = STATISTICS[chosen](request.logits, row_scale=None, extra=request.extra)
    return recounted(request.logits, stats) if chosen in COUNTED_BY_POSITION else stats


class Implementation(NamedTuple):
    """Reasons to refuse a request, asked in order."""

    refusals: tuple[Callable[[Request], str | None], ...] = ()

    def refusal(self, request: Request) -> str | None:
        """Return the first reason not to serve this request, or None."""
        reasons = (refuse(request) for refuse in self.refusals)
        return next((reason for reason in reasons if reason is not None), None)


def _dense_only(request: Request) -> str | None:
    if request.dropout:
        return "dropout is drawn by 'xla' only"
    return "an array with an axis of length 0 is served by 'xla'" if request.is_empty else None


def _more_than_scores(request: Request) -> str | None:
    logits = request.logits
    for name in ("mask", "bias", "sinks", "softcap"):
        if getattr(logits, name) is not None:
            return f"{name} is not honoured: the kernels take scale·<q, k> for the logit"
    if logits.query_segments is not None or logits.query_places is not None:
        return "documents in one sequence are not honoured by the kernels"
    return None


def _solved_beta(request: Request) -> str | None:
    if getattr(request.policy, "iterative", False):
        return "a beta that is solved for may be large, and cuDNN takes beta·q rounded to half precision"
    return None


def _unasked(name: str, request: Request) -> str | None:
    """Say why an implementation that could serve does so only when it is named."""
    if name in ("hybrid", "pallas") and (request.extra or getattr(request.policy, "iterative", False)):
        return "no GPU has run the kernel that gives the variance, and solves for beta with it, yet: name it to take it"
    return None


def _no_gpu_for_pallas(request: Request) -> str | None:
    return None if pallas.INTERPRET else _no_gpu("the kernels need", request.logits)


def _no_gpu_for_cudnn(request: Request) -> str | None:
    return None if stock.KERNEL == "xla" else _no_gpu("cuDNN needs", request.logits)


_PALLAS = (_dense_only, _no_gpu_for_pallas, _more_than_scores, pallas.refusal)
_CUDNN = (_dense_only, _no_gpu_for_cudnn, _more_than_scores, stock.refusal)

LADDER: dict[str, Implementation] = {
    "stock": Implementation((*_CUDNN, stock.refusal_of_statistics)),
    "hybrid": Implementation((*_PALLAS, _solved_beta, *_CUDNN)),
    "pallas": Implementation(_PALLAS),
    "chunked": Implementation((_dense_only,)),
    "xla": Implementation(),
}
"""Implementations by name, fastest first."""

IMPLEMENTATIONS = tuple(LADDER)


def _lowering(logits: Logits) -> str:
    """Return which Pallas kernels compute the statistics."""
    if LOWERING not in (None, "triton", "mosaic"):
        raise ValueError(f"sharpmax.jax.dispatch.LOWERING must be 'triton', 'mosaic' or None, got {LOWERING!r}")
    on_hopper = getattr(_device(logits.query), "compute_capability", None) == "9.0"
    served = mosaic_pipeline.serves(logits.query.shape[3], logits.scale)
    mosaic = served and (LOWERING == "mosaic" or (LOWERING is None and on_hopper))
    return "pallas_mosaic" if mosaic else "pallas_triton"


def _no_gpu(who_needs: str, logits: Logits) -> str | None:
    """Return why what is made for NVIDIA GPUs cannot run where these logits will be computed, or None."""
    device = _device(logits.query)
    if device.platform != "gpu":
        return f"{who_needs} an NVIDIA GPU, and the arrays are on {device.platform!r}"
    # "9.0" of a Hopper; another vendor's is no number.
    capability = str(getattr(device, "compute_capability", "unknown"))
    if not re.fullmatch(r"([89]|\d\d)\.\d", capability):
        return f"{who_needs} an NVIDIA GPU of compute capability 8.0 or later, and this one's is {capability}"
    return None


def _device(query: Array) -> Any:
    """Return a device that will compute this: one that holds the query, or while tracing JAX's default one."""
    if not isinstance(query, jax.core.Tracer):
        return next(iter(query.devices()))
    config: Any = jax.config  # whose types leave its options out
    chosen = config.jax_default_device  # a device, or a platform's name, or None
    return chosen if hasattr(chosen, "platform") else jax.local_devices(backend=chosen)[0]
