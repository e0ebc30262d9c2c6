"""One contract, every implementation: output, statistics and gradients against the float64 reference.

On a machine with an accelerator the same suite runs there: `pytest tests/torch`.
"""

import warnings

import numpy as np
import pytest
import torch

from sharpmax import reference_attention
from sharpmax.torch import IMPLEMENTATIONS, which_implementation
from sharpmax.torch.policy_kinds import constant_beta, kernel_kind
from tests.attention_cases import CASES, Case
from tests.torch.budgets import STATISTICS, assert_within_budget, largest_logit, naive_attention
from tests.torch.checked import attention
from tests.torch.kernels import DEVICE

pytestmark = pytest.mark.usefixtures("poisoned")
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DIFFERENTIABLE = ("query", "key", "value", "bias", "sinks")


INTERPRETED = {"triton": "float32", "hybrid": "float16", "fused": "float16"}
"""Without a GPU the kernels run as Python, a second per case: one dtype each. With one, every dtype."""


def tensors(case: Case, dtype: torch.dtype, precision: torch.dtype | None = None) -> dict[str, torch.Tensor | None]:
    """Draw the case, round it to `dtype`, and give it as `precision` (the same, unless said)."""
    made: dict[str, torch.Tensor | None] = {}
    for name, array in case.draw().items():
        if array is None or array.dtype == np.bool_:
            made[name] = None if array is None else torch.tensor(array, device=DEVICE)
            continue
        tensor = torch.tensor(array, device=DEVICE).to(dtype).to(precision or dtype)
        made[name] = tensor.requires_grad_(name in DIFFERENTIABLE)
    return made


def named(arrays):
    """Split the arrays into the three that come first and the rest."""
    return [arrays[name] for name in ("query", "key", "value")], {n: arrays[n] for n in ("mask", "bias", "sinks")}


def gradients(arrays, output, stats):
    """Differentiate a loss that weighs every output and every statistic differently, but for the count."""
    loss = (output.double() * probe(output)).sum()
    if stats is not None:
        for name in STATISTICS:
            field = getattr(stats, name).double()
            if name != "count":
                loss = loss + (torch.where(field.isfinite(), field, 0) * probe(field)).sum()
    inputs = {n: arrays[n] for n in DIFFERENTIABLE if arrays[n] is not None}
    found = torch.autograd.grad(loss, list(inputs.values()), allow_unused=True)
    return {n: torch.zeros_like(x) if g is None else g for (n, x), g in zip(inputs.items(), found, strict=True)}


def probe(tensor):
    return torch.cos(torch.arange(tensor.numel(), device=tensor.device, dtype=torch.float64)).view(tensor.shape)


def serve(case, arrays, implementation, *, return_stats):
    first, rest = named(arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = attention(*first, **rest, **case.options, implementation=implementation, return_stats=return_stats)
    return result if return_stats else (result, None)


def must_serve(implementation: str, case: Case, dtype: str, *, gradient: bool = True) -> bool:
    """Tell whether the project promises that this implementation serves such a case on this kind of device."""
    if implementation in ("eager", "chunked"):
        return True
    half = dtype in ("float16", "bfloat16")
    changed_logits = any((case.mask, case.bias, case.softcap, case.sinks))
    if implementation == "triton":
        solved = gradient and case.policy.iterative and (dtype == "float32" or case.softcap is not None)
        return case.bias is None and dtype != "float64" and not solved and not (DEVICE == "cpu" and dtype == "bfloat16")
    aligned = not case.is_causal or case.queries in (case.keys, 1)
    bare = not changed_logits and case.window is None and aligned
    if implementation == "hybrid":
        is_kept = constant_beta(case.policy) is not None  # beta is one number: PyTorch's attention alone
        is_decoded = case.queries == 1 and not gradient and not is_kept and kernel_kind(case.policy) != 0
        fits = half and case.width == case.value_width and not is_decoded
        return bare and fits and not (DEVICE == "cpu" and dtype == "bfloat16")
    assert implementation == "stock"
    is_fast = DEVICE == "cpu" or (case.width == case.value_width and dtype == "float32")
    return bare and is_fast and not half and not case.policy.iterative


def runs_here(kernel: str, case: Case, dtype: str) -> bool:
    """Tell whether a promise is tried on this machine: the interpreter runs one dtype of each kernel."""
    only = INTERPRETED.get(kernel, dtype)
    if kernel == "triton" and case.policy.iterative:  # refuses float32
        only = "float16"
    return DEVICE == "cuda" or only == dtype


def served(implementations, *, kernels=None, dtypes=DTYPES, gradient=True):
    """List (implementation, case, dtype) that must serve and are tried here; `kernels` renames for INTERPRETED."""
    return [
        pytest.param(implementation, case, dtype, id=f"{implementation}-{case.name}-{dtype}")
        for implementation in implementations
        for case in CASES
        for dtype in dtypes
        if must_serve(implementation, case, dtype, gradient=gradient)
        and runs_here((kernels or {}).get(implementation, implementation), case, dtype)
    ]


def judge_values(case, dtype, output, stats):
    """Compare output and statistics with the reference, within the budget; return what a gradient needs to go on."""
    exact_arrays, naive_arrays = tensors(case, dtype, torch.float64), tensors(case, dtype)
    first, rest = named(exact_arrays)
    exact, exact_stats = reference_attention(*first, **rest, **case.options, return_stats=True)
    naive, naive_stats = naive_attention(naive_arrays, case.options)
    assert output.dtype == dtype
    assert_within_budget("output", output, exact, naive)
    if stats is not None:
        rounded = torch.float64 if dtype == torch.float64 else torch.float32
        with torch.no_grad():
            _, wide_stats = naive_attention(tensors(case, dtype, rounded), case.options)
        terms = 4 * largest_logit(exact_stats.maximum)
        for name in STATISTICS:
            field = getattr(stats, name)
            assert field.dtype == rounded, f"{name} is {field.dtype}"
            exact_field = getattr(exact_stats, name).expand(field.shape)
            assert_within_budget(name, field, exact_field, getattr(wide_stats, name), terms=terms)
    return exact_arrays, exact, exact_stats, naive_arrays, naive, naive_stats


def judge(case, arrays, dtype, output, stats):
    """Compare a result and its gradients with the reference, within the budget."""
    exact_arrays, exact, exact_stats, naive_arrays, naive, naive_stats = judge_values(case, dtype, output, stats)
    with_stats = stats is not None
    got = gradients(arrays, output, stats)
    wanted = gradients(exact_arrays, exact, exact_stats if with_stats else None)
    low = gradients(naive_arrays, naive, naive_stats if with_stats else None)
    # dL/de is a difference of terms of the size of dO·v (and, through beta and H, of those times the logits).
    widest = max(1.0, *(exact_arrays[n].abs().max().item() for n in ("key", "value")))
    terms = largest_logit(exact_stats.maximum) * widest**2
    for name, gradient in got.items():
        assert_within_budget(f"gradient of {name}", gradient, wanted[name], low[name], terms=terms)


@pytest.mark.filterwarnings("ignore::sharpmax.SilentPolicyWarning")
@pytest.mark.parametrize(("implementation", "case", "dtype"), served(IMPLEMENTATIONS))
def test_contract(implementation, case, dtype):
    arrays = tensors(case, DTYPES[dtype])
    judge(case, arrays, DTYPES[dtype], *serve(case, arrays, implementation, return_stats=implementation != "stock"))


WITHOUT_GRADIENT = {"triton": True, "hybrid": False, "chunked": True}
"""Implementations that take another code path without a gradient, and whether they are asked for statistics there."""


@pytest.mark.filterwarnings("ignore::sharpmax.SilentPolicyWarning")
@pytest.mark.parametrize(
    ("implementation", "case", "dtype"),
    served(
        [name for name in WITHOUT_GRADIENT if name in IMPLEMENTATIONS],
        kernels={"triton": "fused"},
        dtypes=("float32", "float16"),
        gradient=False,
    ),
)
@torch.no_grad()
def test_contract_without_gradient(implementation, case, dtype):
    arrays = tensors(case, DTYPES[dtype])
    judge_values(
        case, DTYPES[dtype], *serve(case, arrays, implementation, return_stats=WITHOUT_GRADIENT[implementation])
    )


@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_list_is_what_dispatch_serves(implementation, gradient):
    """Nothing is refused that the list promises, nor promised less than is served."""
    return_stats = gradient and implementation != "stock"
    for case in CASES:
        for dtype in DTYPES:
            first, rest = named(tensors(case, DTYPES[dtype]))
            options = {**rest, **case.options, "implementation": implementation, "return_stats": return_stats}
            try:
                with torch.set_grad_enabled(gradient):
                    which_implementation(*first, **options)
                is_served = True
            except NotImplementedError:
                is_served = False
            assert is_served == must_serve(implementation, case, dtype, gradient=gradient), (case.name, dtype)
