"""Several processes, each with its stretch of the sequence, give what one process gives; gradients too."""

import pytest
import torch

from sharpmax import EntropyTarget, LogLinear, reference_attention
from sharpmax.torch.distributed.attention import context_parallel_attention
from tests.torch.distributed import on_gloo_processes
from tests.torch.distributed.on_gloo_processes import CASES, LENGTHS, run
from tests.torch.gloo import group_of_one, run_ranks

SHARED = {"gradient of sinks"}  # every process holds a copy, and its share of the gradient


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each process got, by case."""
    folder = run_ranks(on_gloo_processes.__file__, len(LENGTHS), tmp_path_factory.mktemp("gloo"))
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(len(LENGTHS))]


@pytest.mark.parametrize("case", CASES)
def test_processes_agree_with_one(case, found):
    expected = run(reference_attention, case, slice(0, sum(LENGTHS)))
    for name, whole in expected.items():
        parts = [process[case][name] for process in found]
        got = sum(parts) if name in SHARED else torch.cat(parts, dim=2)
        # float64 throughout: a thousand roundings of logits of about 20.
        torch.testing.assert_close(got, whole, rtol=1e-12, atol=1e-11, msg=lambda m, name=name: f"{name}: {m}")


@pytest.fixture
def _alone(tmp_path):
    with group_of_one(tmp_path):
        yield


@pytest.mark.usefixtures("_alone")
def test_one_process_is_a_group_too():
    x = torch.randn(1, 2, 6, 4, dtype=torch.float64)
    got = context_parallel_attention(x, x, x, is_causal=True)
    torch.testing.assert_close(got, reference_attention(x, x, x, is_causal=True))


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("hides", ["mask", "bias"])
def test_what_no_row_sees_reaches_none(hides):
    g = torch.Generator().manual_seed(0)
    x, key, value = (torch.randn(1, 2, 6, 4, generator=g, dtype=torch.float64) for _ in range(3))
    hidden = torch.arange(6)[None] == 3
    how = {"mask": ~hidden} if hides == "mask" else {"bias": torch.zeros(1, 6).masked_fill(hidden, -torch.inf).double()}
    expected = context_parallel_attention(x, key, value, **how)
    key[:, :, 3], value[:, :, 3] = torch.nan, torch.inf
    query = x.clone().requires_grad_()
    found = context_parallel_attention(query, key, value, **how)
    torch.testing.assert_close(found.detach(), expected)
    key[:, :, 3] = 0.0
    context_parallel_attention(query, key, value, **how).sum().backward()
    assert query.grad.isfinite().all()


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"policy": EntropyTarget(0.5)}, NotImplementedError, "iterative"),
        ({"mask": torch.ones(6, 5, dtype=torch.bool)}, ValueError, "does not broadcast"),
        ({"mask": torch.ones(6, 6)}, TypeError, "boolean"),
        ({"mask": torch.ones(6, 6, dtype=torch.bool, device="meta")}, ValueError, "mask must share the query's device"),
        ({"bias": [[0.0] * 6] * 6}, TypeError, "bias must be a torch.Tensor, got list"),
        ({"bias": torch.ones(6, 6, dtype=torch.long)}, TypeError, "bias must have a floating dtype"),
        ({"bias": torch.ones(6, 6, dtype=torch.complex64)}, TypeError, "bias must have a floating dtype"),
        ({"sinks": torch.zeros(3)}, ValueError, "one logit per query head"),
    ],
)
def test_what_cannot_be_served_is_refused(options, error, message):
    x = torch.randn(1, 2, 6, 4)
    with pytest.raises(error, match=message):
        context_parallel_attention(x, x, x, **options)


@pytest.mark.usefixtures("_alone")
def test_a_second_derivative_is_refused():
    x = torch.randn(1, 2, 6, 4, dtype=torch.float64)
    a = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    output = context_parallel_attention(x, x, x, policy=LogLinear(a, 0.2, 0.3))
    with pytest.raises(NotImplementedError, match="has one derivative"):
        torch.autograd.grad(output.square().sum(), a, create_graph=True)


@pytest.mark.usefixtures("_alone")
def test_a_mask_that_is_written_to_before_the_gradient_is_noticed():
    x, mask = torch.randn(1, 2, 6, 4, requires_grad=True), torch.ones(6, 6).tril() > 0
    output = context_parallel_attention(x, x, x, mask=mask)
    mask.fill_(True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
