"""Every fault that copies of the paper's rule have been seen with, as a test by name; and the rule itself as oracle."""

import numpy as np
import pytest
import torch

import sharpmax
from sharpmax import PAPER, Constant, row_stats, softmax
from sharpmax.core.stats import RowStats
from tests.core.naive import COEFFICIENTS, plain_softmax, published_beta, published_rule, rows_of, shannon


def random_rows(seed: int):
    """Rows of 2..16384 items at scales that reach entropies on both sides of every threshold."""
    rng = np.random.default_rng(seed)
    for n in (2, 3, 5, 16, 64, 300, 1000, 4096, 16384):
        for scale in (0.1, 1.0, 3.0, 10.0):
            yield rng.normal(size=(max(65536 // n, 8) if n > 64 else 256, n)) * scale


def test_paper_matches_the_published_lines_with_their_epsilon():
    for rows in random_rows(0):
        expected = np.stack([published_rule(row, epsilon=1e-9) for row in rows])
        np.testing.assert_allclose(softmax(rows), expected, rtol=0, atol=5e-5)


def test_paper_matches_the_rule_without_epsilon():
    for rows in random_rows(1):
        expected = np.stack([published_rule(row, epsilon=0) for row in rows])
        np.testing.assert_allclose(softmax(rows), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_low_precision_stays_within_its_budget(dtype):
    """Twice what the published lines err in float32 on the same rounded logits, plus one rounding of the output."""
    kind = getattr(torch, dtype)
    for rows in random_rows(2):
        logits = torch.tensor(rows).to(kind)
        exact = np.stack([published_rule(row, epsilon=0) for row in logits.double().numpy()])
        plain = np.stack([published_rule(row, epsilon=0) for row in logits.float().numpy()])
        actual = softmax(logits)
        assert actual.dtype == kind
        rounding = torch.finfo(kind).eps * exact.max() + torch.finfo(kind).smallest_normal
        budget = 2 * np.abs(plain - exact).max() + rounding
        assert np.abs(actual.double().numpy() - exact).max() <= budget


def test_coefficients_are_highest_power_first():
    assert PAPER.coefficients == COEFFICIENTS
    beta = PAPER(RowStats(entropy=np.asarray(4.41)))
    np.testing.assert_allclose(beta, 2.42, atol=0.005)
    assert not np.isclose(beta, np.polyval(COEFFICIENTS[::-1], 4.41))


def test_the_polynomial_is_beta_and_not_theta():
    row = np.random.default_rng(0).normal(size=300)
    assert sharpmax.entropy(np.log(softmax(row))) < sharpmax.entropy(row)


def test_entropy_is_in_nats():
    np.testing.assert_allclose(sharpmax.entropy(np.zeros(8)), np.log(8))


def test_half_precision_entropy_does_not_underflow():
    """1e-9 is 0 in float16, so the published lines take log 0 where a weight underflows."""
    logits = torch.tensor([[30.0, 0.0, 0.0]], dtype=torch.float16)
    stats = row_stats(logits)
    np.testing.assert_allclose(float(stats.entropy), shannon(plain_softmax(np.array([30.0, 0.0, 0.0]))), atol=1e-7)
    assert torch.isfinite(softmax(logits)).all()


def test_masked_items_give_no_nan(library):
    logits = np.random.default_rng(0).normal(size=(4, 9))
    visible = np.ones((4, 9), dtype=bool)
    visible[:, 5:] = False
    for masked in (
        softmax(library.array(logits), where=library.array(visible)),
        softmax(library.array(np.where(visible, logits, -np.inf))),
    ):
        weights = library.numpy(masked)
        assert np.isfinite(weights).all()
        assert (weights[:, 5:] == 0).all()


def test_masked_and_padded_items_do_not_count():
    logits = np.random.default_rng(0).normal(size=(4, 9))
    padded = np.concatenate([logits, np.full((4, 500), 3.0)], axis=-1)
    visible = np.arange(509) < 9
    weights, stats = softmax(padded, where=visible, return_stats=True)
    expected, expected_stats = softmax(logits, return_stats=True)
    np.testing.assert_allclose(weights[:, :9], expected, atol=1e-12)
    np.testing.assert_allclose(stats.inverse_temperature, expected_stats.inverse_temperature, atol=1e-12)
    np.testing.assert_array_equal(stats.count, 9)


def test_each_row_has_its_own_beta():
    flat, peaked = np.zeros(64), np.where(np.arange(64) == 3, 30.0, 0.0)
    together = softmax(np.stack([flat, peaked]))
    np.testing.assert_array_equal(together[0], softmax(flat))
    np.testing.assert_array_equal(together[1], softmax(peaked))
    _, stats = softmax(np.stack([flat, peaked]), return_stats=True)
    assert stats.inverse_temperature[0] > 1.5
    assert stats.inverse_temperature[1] == 1.0


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_any_axis(library, axis):
    logits = np.random.default_rng(0).normal(size=(4, 40, 5))
    weights = library.numpy(softmax(library.array(logits), axis=axis))
    moved = np.moveaxis(logits, axis, -1)
    expected = np.stack([published_rule(row, epsilon=0) for row in rows_of(moved)]).reshape(moved.shape)
    np.testing.assert_allclose(np.moveaxis(weights, axis, -1), expected, atol=1e-12)


def test_coefficients_follow_the_logits_to_their_device():
    """Coefficients are Python numbers: no tensor of theirs can be left on another device."""
    stats = row_stats(torch.zeros(3, 8, device="meta"))
    assert PAPER(stats).device.type == "meta"
    learned = sharpmax.LogLinear(a=torch.zeros(()))
    assert learned(stats).device.type == "meta"


def test_no_framework_function_is_patched():
    before = torch.nn.functional.softmax, torch.softmax
    softmax(torch.zeros(2, 8))
    assert (torch.nn.functional.softmax, torch.softmax) == before


def test_the_gradient_policy_is_stated_and_exact():
    """Gradients flow through beta; `detach` stops them; the two differ."""
    logits = torch.randn(2, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    (through,) = torch.autograd.grad((softmax(logits) ** 2).sum(), logits)
    (held,) = torch.autograd.grad((softmax(logits, sharpmax.detach(PAPER)) ** 2).sum(), logits)
    assert (through - held).abs().max() > 1e-3
    _, stats = softmax(logits, return_stats=True)
    plain = softmax(logits, Constant(1.0))
    assert stats.entropy.requires_grad
    assert plain.requires_grad


def test_vocabulary_logits_are_told_that_the_rule_is_off():
    """Sampling with the attention polynomial on a vocabulary does nothing, and says so."""
    with pytest.warns(sharpmax.SilentPolicyWarning, match=r"nothing above an entropy of 5\.945"):
        weights, stats = softmax(np.random.default_rng(0).normal(size=50_000), return_stats=True)
    assert stats.inverse_temperature == 1.0
    np.testing.assert_allclose(weights.sum(), 1.0)


def test_the_guard_above_5_945():
    """The raw polynomial runs to -59 at log 16384: unguarded it would invert the attention."""
    assert np.polyval(COEFFICIENTS, np.log(16384)) < -50
    assert published_beta(np.log(16384)) == 1.0
    np.testing.assert_allclose(PAPER.silent_above, 5.945, atol=5e-4)
    for H in (5.95, 7.0, np.log(16384)):
        assert PAPER(RowStats(entropy=np.asarray(H))) == 1.0


def test_the_rule_acts_only_between_its_two_roots():
    H = np.linspace(0, 10, 20_001)
    beta = PAPER(RowStats(entropy=H))
    acting = H[beta > 1]
    np.testing.assert_allclose([acting.min(), acting.max()], [0.849, 5.945], atol=1e-3)
    np.testing.assert_allclose(beta.max(), 2.42, atol=5e-3)
