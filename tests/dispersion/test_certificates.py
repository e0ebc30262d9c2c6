"""Certificates: the algebra of norms and policies, against brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sharpmax
from sharpmax.core.stats import RowStats
from sharpmax.dispersion.certificates import Certificate, largest_inverse_temperature, reach, spread_from_reach


@given(st.integers(0, 1000), st.booleans())
def test_no_input_reaches_further_than_the_bound(seed, centred):
    rng = np.random.default_rng(seed)
    weight, gain, norm_bias, bias = rng.normal(size=(3, 6)), rng.normal(size=6), rng.normal(size=6), rng.normal(size=3)
    x = rng.normal(size=(200, 6)) * 10 ** rng.uniform(-3, 3)
    if centred:
        x = x - x.mean(-1, keepdims=True)
    normal = x / np.sqrt((x * x).mean(-1, keepdims=True)) * gain + norm_bias
    found = np.linalg.norm(normal @ weight.T + bias, axis=-1).max()
    assert found <= reach(weight, gain=gain, centred=centred, norm_bias=norm_bias, bias=bias) * (1 + 1e-12)


def test_the_bound_is_reached_without_biases():
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(3, 6))
    _, _, right = np.linalg.svd(weight)
    x = right[0] / np.sqrt((right[0] ** 2).mean())
    assert np.linalg.norm(weight @ x) == pytest.approx(reach(weight, gain=np.ones(6), centred=False))


def test_a_softcap_bounds_the_spread_outright():
    assert spread_from_reach(1e6, 1e6, 1.0, softcap=50.0) == 100.0
    assert spread_from_reach(0.1, 0.1, 1.0, softcap=50.0) == pytest.approx(0.02, rel=1e-6)


@pytest.mark.parametrize(
    "policy",
    [
        sharpmax.Constant(1.5),
        sharpmax.PAPER,
        sharpmax.Polynomial((1.0, 0.0, 0.5), domain=(0.5, 4.0)),
        sharpmax.LogLinear(a=0.3, b=0.4, c=0.2),
        sharpmax.Table((0.5, 2.0), (1.0, 3.0)),
        sharpmax.detach(sharpmax.PAPER),
        sharpmax.LengthScaled(slope=-0.1, offset=2.0),
        sharpmax.LengthScaled(slope=-0.5, offset=1.0, reference=1000.0),  # sharper the shorter, below its reference
        sharpmax.LengthScaled(slope=-0.5, offset=1.0, reference=0.1, of="position"),
        sharpmax.LengthScaled(slope=-0.5, offset=1.0, reference=1000.0, of="length", stepped=True),
    ],
)
def test_no_row_gets_more_than_the_largest_beta(policy):
    H, n = np.meshgrid(np.linspace(0, 12, 500), np.geomspace(1, 1e6, 50))
    beta = np.broadcast_to(policy(RowStats(entropy=H, count=n, maximum=H, position=n - 1)), H.shape)
    assert beta.max() <= largest_inverse_temperature(policy) * (1 + 1e-9)


def test_the_largest_beta_is_that_of_the_sharpest_head():
    table = sharpmax.Table((0.0, 1.0), (((1.0,), (2.5,)), ((3.0,), (4.0,))))
    assert largest_inverse_temperature(table) == 4.0
    falling = sharpmax.LengthScaled(slope=((-1.0,), (-2.0,)), offset=((1.0,), (0.5,)), reference=np.e)
    assert largest_inverse_temperature(falling) == 2.5


@pytest.mark.parametrize("policy", [sharpmax.LengthScaled.ssmax(0.4), sharpmax.Polynomial((1.0, 0.0))])
def test_a_policy_without_a_bound_gets_no_certificate(policy):
    assert largest_inverse_temperature(policy) is None
    assert largest_inverse_temperature(sharpmax.PerHead((sharpmax.Constant(1.0), policy))) is None


def test_papers_peak_is_the_known_one():
    assert largest_inverse_temperature(sharpmax.PAPER) == pytest.approx(2.42, abs=0.005)


def test_sizes_follow_the_tight_lemma():
    head = Certificate(0, 0, proved_spread=5.69, measured_spread=2.0, inverse_temperature=2.0)
    assert head.log10_sizes([0.5])["0.5"] == pytest.approx(np.log10(1 + np.exp(11.38)))
    assert head.log10_sizes([0.5], measured=True)["0.5"] == pytest.approx(np.log10(1 + np.exp(4.0)))
    assert Certificate(0, 0, 1.0).log10_sizes(measured=True) is None


def test_a_policy_of_a_users_own_has_no_known_bound():
    class Hotter(sharpmax.Constant):
        def __call__(self, stats, stats_at=None):
            return 10 * super().__call__(stats, stats_at)

    try:
        assert largest_inverse_temperature(Hotter(2.0)) is None
        assert largest_inverse_temperature(sharpmax.PerHead((sharpmax.Constant(1.0), Hotter(2.0)))) is None
    finally:
        del sharpmax.Policy.known["Hotter"]


def test_no_entropy_below_0_counts():
    policy = sharpmax.Polynomial((-1.0, 1.5), threshold=-10.0)
    assert largest_inverse_temperature(policy) == 1.5


@pytest.mark.parametrize("of", ["count", "length", "position"])
@pytest.mark.parametrize("stepped", [False, True])
@pytest.mark.parametrize("reference", [0.3, 1.0, 30.0])
def test_the_largest_beta_of_a_falling_length_policy_is_attained(of, stepped, reference):
    policy = sharpmax.LengthScaled(-1.0, 2.0, reference=reference, of=of, stepped=stepped)
    n = np.arange(1.0, 500.0)
    beta = policy(RowStats(count=n, position=n - 1, maximum=n))
    assert largest_inverse_temperature(policy) == pytest.approx(beta.max(), rel=1e-12)
