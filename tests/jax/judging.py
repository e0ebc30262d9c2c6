"""Judging a JAX result: by the float64 reference and the error budgets that the PyTorch suite uses, on the same cases.

The reference and the naive low-precision attention run in PyTorch, whose autograd needs no compilation. The same budget
judges it by what `sharpmax.torch.attention` makes of the same inputs.
"""

import warnings
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import sharpmax.torch
from sharpmax import reference_attention
from tests.attention_cases import Case
from tests.jax.checked import attention
from tests.torch.budgets import STATISTICS, assert_within_budget, largest_logit, naive_attention

INPUTS = ("query", "key", "value", "bias", "sinks")
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass
class Result:
    """Output (B, H, L, D), statistics by name, gradients by name, all as float64 tensors; and the dtypes they had."""

    output: torch.Tensor
    stats: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]
    dtype: torch.dtype
    wide: torch.dtype


def lengths_first(array: Any) -> Any:
    return array.swapaxes(1, 2)


def draw(case: Case, dtype: str) -> dict[str, np.ndarray | None]:
    """Draw the case and round it to `dtype`, kept as float64."""

    def rounded(array: np.ndarray | None) -> np.ndarray | None:
        if array is None or array.dtype == np.bool_:
            return array
        return torch.from_numpy(array).to(DTYPES[dtype]).double().numpy()

    return {name: rounded(array) for name, array in case.draw().items()}


def in_jax(case: Case, dtype: str, call: Any = attention, **options: Any) -> Result:
    """Run the case through `call` and pull a loss back that weighs every output and every statistic differently."""
    arrays = draw(case, dtype)
    mask = None if arrays["mask"] is None else jnp.asarray(arrays["mask"])
    given = {n: jnp.asarray(arrays[n], dtype) for n in INPUTS if arrays[n] is not None}
    given |= {n: lengths_first(given[n]) for n in ("query", "key", "value")}

    def run(given: dict[str, jax.Array]) -> Any:
        rest = {n: given[n] for n in ("bias", "sinks") if n in given}
        output, stats = call(
            given["query"],
            given["key"],
            given["value"],
            mask=mask,
            **rest,
            **case.options,
            **options,
            return_stats=True,
        )
        return output, {name: getattr(stats, name) for name in STATISTICS}

    @jax.jit  # one program, in a third of the time of its operations one by one
    def everything(given: dict[str, jax.Array]) -> Any:
        (output, stats), pull = jax.vjp(run, given)
        seeds = {n: jnp.where(jnp.isfinite(s), probe(s.shape), 0) * (n != "count") for n, s in stats.items()}
        seed = jnp.asarray(lengths_first(probe(lengths_first(output).shape)), output.dtype)
        return output, stats, pull((seed, {n: s.astype(stats[n].dtype) for n, s in seeds.items()}))[0]

    output, stats, gradients = everything(given)
    gradients |= {n: lengths_first(gradients[n]) for n in ("query", "key", "value")}
    return Result(
        output=as_tensor(lengths_first(output)),
        stats={n: as_tensor(s) for n, s in stats.items()},
        gradients={n: as_tensor(g) for n, g in gradients.items()},
        dtype=DTYPES[str(output.dtype)],
        wide=DTYPES[str(stats["entropy"].dtype)],
    )


def in_torch(case: Case, dtype: str, call: Any, precision: torch.dtype) -> Result:
    """Run the same by a torch function of the layout (B, H, L, D), on the rounded inputs held in `precision`."""
    arrays = draw(case, dtype)
    given = {n: torch.tensor(arrays[n], dtype=precision).requires_grad_() for n in INPUTS if arrays[n] is not None}
    mask = None if arrays["mask"] is None else torch.tensor(arrays["mask"])
    every = {"mask": mask, **{n: given.get(n) for n in INPUTS}}
    output, stats = call(every, case.options)
    fields = {n: getattr(stats, n).expand(output.shape[:3]) for n in STATISTICS}
    loss = (output.double() * torch.from_numpy(probe(output.shape))).sum()
    for name, field in fields.items():
        if name != "count":
            finite = torch.where(field.isfinite(), field.double(), 0)
            loss = loss + (finite * torch.from_numpy(probe(field.shape))).sum()
    found = torch.autograd.grad(loss, list(given.values()), allow_unused=True)
    gradients = {n: torch.zeros_like(x) if g is None else g for (n, x), g in zip(given.items(), found, strict=True)}
    return Result(
        output.detach().double(),
        {n: s.detach().double() for n, s in fields.items()},
        {n: g.double() for n, g in gradients.items()},
        output.dtype,
        fields["entropy"].dtype,
    )


@cache
def exact(case: Case, dtype: str) -> Result:
    """The reference, in float64."""

    def call(arrays: dict[str, Any], options: dict[str, Any]) -> Any:
        first = [arrays[n] for n in ("query", "key", "value")]
        rest = {n: arrays[n] for n in ("mask", "bias", "sinks")}
        return reference_attention(*first, **rest, **options, return_stats=True)

    return in_torch(case, dtype, call, torch.float64)


@cache
def by_torch(case: Case, dtype: str) -> Result:
    """What our own attention in PyTorch makes of it, in the same dtype."""

    def call(arrays: dict[str, Any], options: dict[str, Any]) -> Any:
        first = [arrays[n] for n in ("query", "key", "value")]
        rest = {n: arrays[n] for n in ("mask", "bias", "sinks")}
        return sharpmax.torch.attention(*first, **rest, **options, return_stats=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return in_torch(case, dtype, call, DTYPES[dtype])


@cache
def naive(case: Case, dtype: str, precision: torch.dtype | None = None) -> Result:
    """Attention as people write it, in the inputs' dtype."""
    return in_torch(case, dtype, naive_attention, precision or DTYPES[dtype])


def judge(case: Case, dtype: str, got: Result, beside: Result | None = None) -> None:
    """Assert output, statistics and gradients within the budget; beside another result, that both can be within it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want, low = exact(case, dtype), naive(case, dtype)
        low_wide = naive(case, dtype, got.wide)
    if beside is not None:  # each of two may err by as much as the budget has for one
        low, low_wide = (_moved(errs, want, beside) for errs in (low, low_wide))
        want = beside
    assert got.dtype == DTYPES[dtype]
    assert got.wide == (torch.float64 if dtype == "float64" else torch.float32)
    assert_within_budget("output", got.output.to(got.dtype), want.output, low.output)
    largest = largest_logit(want.stats["maximum"])
    for name in STATISTICS:
        field = got.stats[name].to(got.wide)
        assert_within_budget(name, field, want.stats[name], low_wide.stats[name], terms=4 * largest)
    # dL/de is a difference of terms of the size of dO·v (and, through beta and H, of those times the logits).
    arrays = draw(case, dtype)
    terms = largest * max(1.0, *(float(np.abs(arrays[n]).max()) ** 2 for n in ("key", "value")))
    for name, gradient in got.gradients.items():
        assert_within_budget(
            f"gradient of {name}", gradient.to(got.dtype), want.gradients[name], low.gradients[name], terms=terms
        )


def _moved(low: Result, want: Result, beside: Result) -> Result:
    """Return a result that errs by twice what `low` errs, around the one beside it instead of the exact one."""

    def moved(low: torch.Tensor, want: torch.Tensor, beside: torch.Tensor) -> torch.Tensor:
        return beside + 2 * (low.double() - want)

    return replace(
        low,
        output=moved(low.output, want.output, beside.output),
        stats={n: moved(s, want.stats[n], beside.stats[n]) for n, s in low.stats.items()},
        gradients={n: moved(g, want.gradients[n], beside.gradients[n]) for n, g in low.gradients.items()},
    )


def probe(shape: tuple[int, ...]) -> np.ndarray:
    """Return weights that tell every element from its neighbours."""
    return np.cos(np.arange(np.prod(shape), dtype=np.float64)).reshape(shape)


def as_tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float64))
