"""Row statistics: the equations, the laws of masks, and the streaming state."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sharpmax
from sharpmax import RowStats, StreamState, row_stats
from tests.core.naive import plain_softmax, shannon

logit = st.floats(-50, 50, width=64)
row = hnp.arrays(np.float64, st.integers(1, 40), elements=logit)
maskable = hnp.arrays(np.float64, st.integers(0, 30), elements=logit | st.just(-np.inf))


def assert_same(actual: RowStats, expected: RowStats, tolerance: float = 1e-9) -> None:
    for name, a, b in zip(RowStats._fields, actual, expected, strict=True):
        assert (a is None) == (b is None), name
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=name)


@given(row)
def test_every_statistic_is_its_definition(e):
    stats = row_stats(e, extra=("minimum", "variance"))
    p = plain_softmax(e)
    np.testing.assert_allclose(stats.entropy, shannon(p), atol=1e-10)
    np.testing.assert_allclose(stats.logsumexp, np.max(e) + np.log(np.sum(np.exp(e - np.max(e)))), atol=1e-12)
    assert stats.maximum == np.max(e)
    assert stats.minimum == np.min(e)
    assert stats.count == e.size
    np.testing.assert_allclose(stats.variance, np.sum(p * (e - np.sum(p * e)) ** 2), atol=1e-9)


@given(row, st.floats(-100, 100))
def test_a_shift_moves_only_the_levels(e, shift):
    before, after = row_stats(e), row_stats(e + shift)
    np.testing.assert_allclose(after.entropy, before.entropy, atol=1e-9)
    np.testing.assert_allclose(after.logsumexp, before.logsumexp + shift, atol=1e-9)


@given(row, st.randoms())
def test_the_order_of_items_does_not_matter(e, random):
    order = list(range(e.size))
    random.shuffle(order)
    assert_same(row_stats(e[order], extra=["variance"]), row_stats(e, extra=["variance"]))


@given(row, st.data())
def test_masked_equals_removed(e, data):
    visible = data.draw(hnp.arrays(bool, e.shape))
    extra = ("minimum", "variance")
    assert_same(row_stats(e, where=visible, extra=extra), row_stats(e[visible], extra=extra))
    written = np.where(visible, e, -np.inf)
    assert_same(row_stats(written, extra=extra), row_stats(e[visible], extra=extra))


@given(maskable, st.data())
def test_a_row_seen_in_blocks_equals_the_row_seen_whole(e, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, e.size), max_size=4)))
    blocks = np.split(e, cuts)
    extra = ("minimum", "variance")
    state = StreamState.of(blocks[0], extra=extra)
    for block in blocks[1:]:
        state = state.merge(StreamState.of(block, extra=extra))
    assert_same(state.stats(), row_stats(e, extra=extra))


@given(maskable, maskable, maskable)
def test_merging_is_associative_and_commutative(a, b, c):
    x, y, z = (StreamState.of(part, extra=("variance", "minimum")) for part in (a, b, c))
    assert_same(x.merge(y).merge(z).stats(), x.merge(y.merge(z)).stats())
    assert_same(x.merge(y).stats(), y.merge(x).stats(), tolerance=0)


@given(row, st.floats(1, 50))
def test_entropy_never_rises_when_beta_is_at_least_one(e, beta):
    assert row_stats(beta * e).entropy <= row_stats(e).entropy + 1e-9


def test_an_empty_row_is_neutral(library):
    masked = row_stats(library.array([[-np.inf, -np.inf], [0.0, 0.0]], "float64"), extra=("variance",))
    for name, value in {"entropy": 0, "count": 0, "logsumexp": -np.inf, "maximum": -np.inf, "variance": 0}.items():
        assert library.numpy(getattr(masked, name))[0] == value, name
    assert library.numpy(masked.entropy)[1] == np.log(2)
    widthless = row_stats(library.array(np.zeros((3, 0)), "float64"))
    np.testing.assert_array_equal(library.numpy(widthless.entropy), np.zeros(3))
    np.testing.assert_array_equal(library.numpy(widthless.logsumexp), np.full(3, -np.inf))


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # NumPy's word on inf - inf
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nan_and_inf_poison_their_own_row_alone(library, poison):
    logits = np.random.default_rng(0).normal(size=(3, 5))
    clean = row_stats(library.array(logits))
    logits[1, 2] = poison
    stats = row_stats(library.array(logits))
    assert np.isnan(library.numpy(stats.entropy)[1])
    np.testing.assert_array_equal(library.numpy(stats.entropy)[[0, 2]], library.numpy(clean.entropy)[[0, 2]])


@pytest.mark.parametrize(("dtype", "wide"), [("float16", "float32"), ("bfloat16", "float32"), ("float32", "float32")])
def test_statistics_of_half_precision_are_float32(library, dtype, wide):
    if not hasattr(library.xp, dtype):
        dtype = "float32"  # array-api-strict and plain NumPy know no half precision by that name
    stats = row_stats(library.array(np.zeros((2, 70000)), dtype))
    for field in stats[:4]:
        assert field.dtype == getattr(library.xp, wide)
    # 70,000 terms of weight 1/70000: a float16 sum would overflow.
    np.testing.assert_allclose(library.numpy(stats.entropy), np.log(70000), rtol=1e-5)


def test_statistics_agree_across_libraries(library):
    logits = np.random.default_rng(1).normal(size=(2, 3, 17)) * 5
    logits[0, 0, 4:] = -np.inf
    visible = np.random.default_rng(2).random((3, 17)) < 0.7
    expected = row_stats(logits, where=visible, axis=1, extra=("minimum", "variance"))
    actual = row_stats(library.array(logits), where=library.array(visible), axis=1, extra=("minimum", "variance"))
    for name, a, b in zip(RowStats._fields, actual, expected, strict=True):
        if b is not None:
            np.testing.assert_allclose(library.numpy(a), b, rtol=1e-12, atol=1e-12, err_msg=name)


@settings(max_examples=30)
@given(st.integers(1, 3000), st.floats(0, 30))
def test_float32_entropy_stays_within_its_budget(n, scale):
    """Twice the error of the plain float32 formula, plus one rounding of the result."""
    e = (np.random.default_rng(n).normal(size=n) * scale).astype(np.float32)
    exact = shannon(plain_softmax(e.astype(np.float64)))
    p = plain_softmax(e)
    plain = -np.sum(p * np.log(np.where(p > 0, p, 1)), dtype=np.float32)
    budget = 2 * abs(float(plain) - exact) + np.finfo(np.float32).eps * (1 + np.log(n) + scale)
    assert abs(float(sharpmax.entropy(e)) - exact) <= budget


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("far", [1e3, 1e18, 1e30, None])
def test_blocks_that_lie_far_apart_merge_as_the_row_seen_whole(far, dtype):
    """A block written with the lowest finite number is how an additive mask looks."""
    far = -np.finfo(dtype).max if far is None else -far
    e = np.concatenate([np.full(1024, far), np.linspace(0, 3, 40)]).astype(dtype)
    extra = ("variance", "minimum")
    parts = [StreamState.of(block, extra=extra) for block in np.split(e, [700, 1024, 1030])]
    for order in (parts, parts[::-1]):
        state = order[0]
        for part in order[1:]:
            state = state.merge(part)
        assert_same(state.stats(), row_stats(e, extra=extra), tolerance=4 * np.finfo(dtype).eps * 10)


def test_wider_floats_are_not_narrowed_below_float64():
    close = np.asarray([1.0, 1.0 + 1e-12], dtype=np.longdouble)
    expected = sharpmax.softmax(close.astype(np.float64), sharpmax.Constant(1e12))
    assert sharpmax.softmax(close, sharpmax.Constant(1e12)).dtype == np.longdouble
    np.testing.assert_allclose(sharpmax.softmax(close, sharpmax.Constant(1e12)).astype(np.float64), expected)


@pytest.mark.parametrize("extra", [["median"], ["varience"], "variance", ["entropy"]])
@pytest.mark.parametrize("ask", [row_stats, StreamState.of])
def test_a_statistic_that_does_not_exist_is_refused(ask, extra):
    with pytest.raises(ValueError, match="extra may name"):
        ask(np.zeros((2, 3)), extra=extra)
