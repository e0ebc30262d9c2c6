"""A NaN or inf in a key that a row does not see changes nothing there; second derivatives are right or refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharpmax import PAPER, EntropyTarget, LengthScaled, LogLinear, reference_attention
from sharpmax.jax import attention
from sharpmax.jax.pallas import passes

LENGTH, BAD = 12, 9
ROW = np.arange(LENGTH)
HIDES = {
    "causal": ({"is_causal": True}, ROW >= BAD),
    "window": ({"window": (2, 1)}, (ROW - BAD <= 2) & (BAD - ROW <= 1)),
    "mask": ({"mask": jnp.arange(LENGTH) != BAD}, ROW < 0),
    "bias": ({"bias": jnp.where(jnp.arange(LENGTH) == BAD, -jnp.inf, 0.0)}, ROW < 0),
}


def drawn():
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=(1, LENGTH, 2, 8)), jnp.float32) for _ in range(3)]


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("hidden_by", HIDES)
@pytest.mark.parametrize("implementation", ["chunked", "xla"])
def test_an_unseen_key_changes_no_row(implementation, hidden_by, poison):
    options, sees = HIDES[hidden_by]
    q, k, v = drawn()
    clean, got = (
        np.asarray(attention(q, key, v, policy=PAPER, implementation=implementation, **options))
        for key in (k, k.at[0, BAD, 0, 3].set(poison))
    )
    np.testing.assert_allclose(got[0, ~sees, 0], clean[0, ~sees, 0], rtol=1e-6)
    np.testing.assert_array_equal(got[0, :, 1], clean[0, :, 1])
    assert not sees.any() or np.isnan(got[0, sees, 0]).all() or poison == np.inf


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of an inf in the reference
@pytest.mark.parametrize("hidden_by", ["nothing", "causal", "window", "mask"])
@pytest.mark.parametrize("implementation", [None, "chunked", "xla"])
def test_a_key_whose_own_logit_is_minus_infinity_is_not_counted(implementation, hidden_by):
    q, k, v = drawn()
    q, k = jnp.abs(q), k.at[0, 4, 0, 3].set(-jnp.inf)
    options = HIDES[hidden_by][0] if hidden_by != "nothing" else {}
    for policy in (LengthScaled.ssmax(0.5), LogLinear(0.1, 0.3, 0.2)):

        def attend(q, k, v, policy=policy):
            return attention(q, k, v, policy=policy, implementation=implementation, **options)

        arrays = (np.asarray(x, np.float64).swapaxes(1, 2) for x in (q, k, v))
        given = {name: np.asarray(x) if name == "mask" else x for name, x in options.items()}
        exact = reference_attention(*arrays, policy=policy, **given).swapaxes(1, 2)
        np.testing.assert_allclose(attend(q, k, v), exact, atol=2e-6)
        np.testing.assert_allclose(jax.jit(jax.vmap(attend))(q[None], k[None], v[None])[0], exact, atol=2e-6)
        assert jnp.isfinite(jax.grad(lambda v: attend(q, k, v).sum())(v)).all()


def test_chunked_has_one_derivative_of_a_solved_beta_and_says_so():
    q, k, v = (x[:, :3] for x in drawn())

    def loss(q):
        return attention(q, k, v, policy=EntropyTarget(0.6), implementation="chunked").sum()

    with pytest.raises(NotImplementedError, match="'xla' has the second"):
        jax.jvp(jax.grad(loss), (q,), (q,))


def test_a_row_whose_entropy_a_kernel_cannot_tell_is_not_passed_off_as_plain(monkeypatch):
    monkeypatch.setattr(passes, "INTERPRET", True)
    q, k, v = (jnp.tile(x, (1, 1, 1, 2)).astype(jnp.bfloat16) for x in drawn())
    q, k = jnp.abs(q), k.at[0, 4, 0, 3].set(-jnp.inf)
    got, exact = (
        np.asarray(attention(q, k, v, policy=PAPER, is_causal=True, implementation=name), np.float32)
        for name in ("pallas", "chunked")
    )
    unknown = np.isnan(got).any((0, 3))
    assert unknown.tolist() == [[row >= 4, False] for row in range(LENGTH)]
    np.testing.assert_allclose(got[0, ~unknown], exact[0, ~unknown], atol=2e-2)
