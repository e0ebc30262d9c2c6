"""A NaN or inf in a key or value reaches the rows that see it, and no others; a large beta overflows nowhere."""

import numpy as np
import pytest
import torch

from sharpmax import PAPER, Constant, EntropyTarget, LengthScaled, LogLinear, reference_attention
from sharpmax.torch import IMPLEMENTATIONS, attention, row_stats, which_implementation
from tests.torch.kernels import PRECISE

LENGTH, BAD = 20, 16
ROW = torch.arange(LENGTH)
SEES_ALL = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
HIDES = {
    "causal": ({"is_causal": True}, ROW >= BAD),
    "window": ({"window": (3, 2)}, (ROW - BAD <= 3) & (BAD - ROW <= 2)),
    "mask": ({"mask": SEES_ALL.index_fill(1, torch.tensor([BAD]), False)}, ROW < 0),
    "bias": ({"bias": torch.zeros(LENGTH).index_fill(0, torch.tensor([BAD]), -torch.inf)}, ROW < 0),
}
NUMPY_WARNS = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of a NaN, in the reference or the interpreter


def drawn(dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, 2, LENGTH, 16, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3))
    return 2 * q, k, v


def spoil(tensor, poison):
    spoilt = tensor.clone()
    spoilt[0, 0, BAD, 3] = poison
    return spoilt


def serve(implementation, tensors, options):
    """Attend where the implementation runs: kernels on a GPU if there is one."""
    if implementation in PRECISE and torch.cuda.is_available():
        tensors = [x.cuda() for x in tensors]
        options = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    return attention(*tensors, implementation=implementation, **options).cpu()


HIDDEN_FROM = {"hybrid": ["causal"], "triton": ["causal", "window", "mask"], "stock": []}
"""How an implementation can hide a key; those not named here, in every way. 'stock' leaves such keys to others."""
UNSEEN = [
    (implementation, hidden_by, policy)
    for implementation in IMPLEMENTATIONS
    for hidden_by in HIDDEN_FROM.get(implementation, HIDES)
    for policy in (PAPER, EntropyTarget(1.0))
]


@NUMPY_WARNS
@pytest.mark.parametrize(("implementation", "hidden_by", "policy"), UNSEEN)
def test_an_unseen_key_changes_no_row(implementation, hidden_by, policy):
    options, sees = HIDES[hidden_by]
    q, k, v = drawn(PRECISE.get(implementation, torch.float64))
    options = {"policy": policy, **options}
    if "bias" in options:
        options["bias"] = options["bias"].to(q.dtype)
    clean = serve(implementation, (q, k, v), options)
    for poison in (torch.nan, torch.inf):
        got = serve(implementation, (q, spoil(k, poison), v), options)
        torch.testing.assert_close(got[0, 0, ~sees], clean[0, 0, ~sees])
        assert torch.equal(got[0, 1], clean[0, 1])
        # An inf of one component makes some logits -inf, which is masked.
        assert not sees.any() or got[0, 0, sees].isnan().all() or poison == torch.inf


@NUMPY_WARNS
@pytest.mark.parametrize("hidden_by", HIDES)
@pytest.mark.parametrize("implementation", [None, "chunked", "eager"])
def test_an_unseen_value_changes_no_row_and_no_gradient(implementation, hidden_by):
    """The kernels and JAX multiply it by 0, as their frameworks' own attention does: it must be finite there."""
    options, sees = HIDES[hidden_by]
    options = options if "bias" not in options else {"bias": options["bias"].double()}
    q, k, v = drawn()

    def gradients(value):
        leaves = [x.clone().requires_grad_() for x in (q, k, value)]
        output = attention(*leaves, implementation=implementation, **options)
        return output.detach(), *torch.autograd.grad(output[0, :, ~sees].square().sum(), leaves)

    clean, *wanted = gradients(v)
    for poison in (torch.nan, torch.inf, -torch.inf):
        got, *found = gradients(spoil(v, poison))
        torch.testing.assert_close(got[0, 0, ~sees], clean[0, 0, ~sees])
        torch.testing.assert_close(got[0, 1], clean[0, 1])
        assert not got[0, 0, sees, 3].isfinite().any()
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)
        arrays = [x.numpy() for x in (q, k, spoil(v, poison))]
        given = {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
        np.testing.assert_allclose(got.numpy(), reference_attention(*arrays, **given), atol=1e-12)


def test_stock_leaves_a_spoilt_key_or_value_to_another():
    q, k, v = drawn()
    for spoilt in ((k, spoil(v, torch.nan)), (spoil(k, torch.nan), v), (spoil(k, torch.inf), v)):
        chosen = which_implementation(q, *spoilt, is_causal=True, policy=Constant(2.0))
        assert chosen.implementation == "chunked"
        assert "NaN" in chosen.refused["stock"]
    assert which_implementation(q, k, v, is_causal=True, policy=Constant(2.0)).implementation == "stock"
    chosen = which_implementation(q.abs(), spoil(k, -torch.inf), v, policy=Constant(2.0))
    assert chosen.implementation == "chunked"
    assert "logit of -inf" in chosen.refused["stock"]


@NUMPY_WARNS
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("hidden_by", ["nothing", "causal", "window"])
@pytest.mark.parametrize("implementation", [None, "chunked", "eager"])
def test_a_key_whose_own_logit_is_minus_infinity_is_not_counted(implementation, hidden_by, learns):
    q, k, v = drawn()
    q, k = q.abs(), spoil(k, -torch.inf)
    options = HIDES[hidden_by][0] if hidden_by != "nothing" else {}
    for policy in (Constant(2.0), LengthScaled.ssmax(0.5), LogLinear(0.1, 0.3, 0.2)):
        leaves = [x.clone().requires_grad_(learns) for x in (q, k, v)]
        got = attention(*leaves, policy=policy, implementation=implementation, **options).detach()
        exact = reference_attention(*(x.numpy() for x in (q, k, v)), policy=policy, **options)
        np.testing.assert_allclose(got.numpy(), exact, atol=1e-12)


LARGE = [(implementation, beta) for implementation in (None, "stock", "chunked", "eager") for beta in (1e6, 1e10, 1e18)]
LARGE += [("triton", 1e6)] if "triton" in IMPLEMENTATIONS else []  # the kernels refuse more


@pytest.mark.parametrize("queries", [LENGTH, 1])
@pytest.mark.parametrize(("implementation", "beta"), LARGE)
def test_large_logits_times_a_large_beta_give_the_largest_its_weight(implementation, beta, queries):
    q, k, v = drawn(torch.float32)
    q = q[:, :, -queries:]
    # The kernels take a scaled logit below -2^60 for a masked one.
    size = 1e5 if implementation in PRECISE else 1e15
    got = serve(implementation, (size * q, size * k, v), {"policy": Constant(beta), "is_causal": True})
    exact = reference_attention(
        *(x.double().numpy() for x in (size * q, size * k, v)), policy=Constant(beta), is_causal=True
    )
    np.testing.assert_allclose(got.numpy(), exact, rtol=1e-5)


@pytest.mark.parametrize("implementation", [None, *(name for name in IMPLEMENTATIONS if name != "stock")])
def test_tied_leaders_keep_float16_finite(implementation):
    """Their beta is EntropyTarget's maximum, and beta·q beyond float16."""
    q, k, v = drawn(torch.float16)
    q, k = q.abs(), k.index_fill(2, torch.tensor([0, 1]), 3.0)
    got = serve(implementation, (q, k, v), {"policy": EntropyTarget(0.5)})
    torch.testing.assert_close(got, (v[:, :, :1] + v[:, :, 1:2]).div(2).expand_as(got), atol=2e-3, rtol=0)


def test_huge_logits_do_not_make_an_entropy_of_rounding():
    """LSE - E_p[e] of logits of 1e30 is rounding of 1e23, of which a polynomial is NaN."""
    q, k, v = drawn(torch.float32)
    got = attention(1e15 * q, 1e15 * k, v, policy=PAPER, implementation="stock")
    assert got.isfinite().all()


@pytest.mark.parametrize("policy", [LengthScaled.log_n(2.0), EntropyTarget(0.1)], ids=["length", "target"])
def test_a_nan_in_one_sequence_hides_no_key_of_another(policy):
    """One query each: the second sequence has a key whose logit is -inf, with a NaN beside it and without."""
    query, value = torch.ones(2, 1, 1, 1), torch.arange(6.0).view(2, 1, 3, 1)
    key = torch.tensor([[1.0, 2.0, 3.0], [1.0, -torch.inf, 2.0]]).view(2, 1, 3, 1)
    alone = attention(query[1:], key[1:], value[1:], policy=policy)
    query[0] = torch.nan
    output = attention(query, key, value, policy=policy)
    assert output[0].isnan().all()
    assert torch.equal(output[1:], alone)


@pytest.mark.parametrize("implementation", ["eager", "chunked"])
def test_a_logit_that_overflows_to_minus_infinity_is_not_counted(implementation):
    query = torch.tensor([[1e20, 0.0], [1.0, 1.0]]).view(1, 1, 2, 2)
    key = torch.tensor([[-1e20, 0.0], [1e-18, 1.0], [2e-18, 3.0]]).view(1, 1, 3, 2)
    stats = row_stats(query, key, implementation=implementation)
    assert stats.count.flatten().tolist() == [2.0, 3.0]
    assert stats.entropy[0, 0, 0] < 1e-6
