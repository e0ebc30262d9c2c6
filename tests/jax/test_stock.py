"""cuDNN alone serves policies that read no logit, and refuses statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharpmax import PAPER, Constant, LengthScaled
from sharpmax.jax import attention, which_implementation

pytestmark = pytest.mark.usefixtures("interpreted")


def test_policies_by_length_are_served():
    x = jax.random.normal(jax.random.key(0), (1, 32, 2, 16), jnp.bfloat16)
    for policy in (Constant(2.0), LengthScaled.ssmax(0.5)):
        plain, ours = (attention(x, x, x, policy=policy, is_causal=True, implementation=i) for i in ("stock", "xla"))
        # Both round a mean of values to bfloat16; stock rounds beta·q and the weights too.
        np.testing.assert_allclose(plain.astype(float), ours.astype(float), atol=4 * 2**-8 * float(jnp.abs(x).max()))


@pytest.mark.parametrize("options", [{"policy": PAPER}, {"policy": Constant(2.0), "return_stats": True}])
def test_statistics_are_refused(options):
    x = jnp.zeros((1, 32, 2, 16), jnp.bfloat16)
    with pytest.raises(NotImplementedError, match="beyond the error budget"):
        attention(x, x, x, implementation="stock", **options)


@pytest.mark.parametrize("policy", [PAPER, Constant(1e5), LengthScaled.ssmax(0.5), Constant(jnp.ones(()))])
def test_float16_is_refused_where_beta_times_q_may_leave_its_range(policy):
    x = jax.random.normal(jax.random.key(0), (1, 8, 1, 16), jnp.float16)
    for implementation in ("stock", "hybrid"):
        with pytest.raises(NotImplementedError, match=r"65,504"):
            attention(x, x, x, policy=policy, implementation=implementation)
    assert which_implementation(x, x, x, policy=policy).implementation == "pallas"
    assert np.isfinite(attention(x, x, x, policy=policy)).all()


def test_float16_that_is_not_sharpened_is_served():
    x = jax.random.normal(jax.random.key(0), (1, 8, 1, 16), jnp.float16)
    assert which_implementation(x, x, x, policy=Constant(1.0)).implementation == "stock"
