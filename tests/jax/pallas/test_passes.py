"""Our Pallas kernels: a NaN stays in its row, they lower for CUDA on any machine, and what they cannot do raises.

That they keep the contract is tests/jax/test_contract.py's, by the interpreters or on a GPU.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from sharpmax import PAPER, Constant, EntropyTarget
from sharpmax.jax import attention, dispatch, row_stats
from tests.jax.conftest import ON_GPU


def test_pallas_is_imported_only_here():
    package = Path(dispatch.__file__).parent.parent
    users = [p for p in package.rglob("*.py") if "experimental import pallas" in p.read_text(encoding="utf-8")]
    users += [p for p in package.rglob("*.py") if "jax.experimental.pallas" in p.read_text(encoding="utf-8")]
    assert users
    assert all(p.is_relative_to(package / "jax" / "pallas") for p in users)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("implementation", ["pallas", "hybrid"])
def test_hessian_products_are_not_the_kernels(implementation):
    x = jax.random.normal(jax.random.key(0), (1, 32, 2, 16), jnp.bfloat16)
    slope = jax.grad(lambda q: attention(q, x, x, implementation=implementation).sum())
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(slope, (x,), (x,))


@pytest.mark.usefixtures("interpreted")
def test_the_variance_and_its_gradient_are_those_of_chunked():
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 37, 2, 16), jnp.bfloat16)

    def variance(q, k, implementation):
        return row_stats(q, k, is_causal=True, extra=frozenset({"variance"}), implementation=implementation).variance

    wide = (q.astype(jnp.float32), k.astype(jnp.float32))
    np.testing.assert_allclose(variance(q, k, "pallas"), variance(*wide, "chunked"), rtol=1e-4, atol=1e-5)
    weigh = jnp.cos(jnp.arange(2 * 37.0)).reshape(1, 2, 37)
    slopes = [
        jax.grad(lambda *x, by=by: (weigh * variance(*x, by)).sum(), (0, 1))(*given)
        for given, by in (((q, k), "pallas"), (wide, "chunked"))
    ]
    for found, wanted in zip(*slopes, strict=True):
        np.testing.assert_allclose(found.astype(jnp.float32), wanted, rtol=2e-2, atol=2e-2)
    with pytest.raises(NotImplementedError, match="minimum"):
        row_stats(q, k, extra=frozenset({"minimum"}), implementation="pallas")


@pytest.fixture(params=["NumPy's maxima", "Triton's maxima"])
def _maxima(request, monkeypatch):
    """Let maxima pass over a NaN, as Triton's do on the device; the interpreter's own keep it."""
    if request.param == "NumPy's maxima" or ON_GPU:
        yield
        return
    whole = jnp.max
    with monkeypatch.context() as patch:
        jax.clear_caches()  # what was traced before, and here, must not serve the others
        patch.setattr(jnp, "maximum", jnp.fmax)
        patch.setattr(jnp, "max", lambda x, axis: whole(jnp.where(jnp.isnan(x), -jnp.inf, x), axis=axis))
        yield
        jax.clear_caches()


@pytest.mark.usefixtures("interpreted", "_maxima")
@pytest.mark.parametrize(
    ("implementation", "policy"), [("pallas", PAPER), ("hybrid", PAPER), ("pallas", EntropyTarget(1.0))], ids=str
)
def test_a_poisoned_row_poisons_no_other(implementation, policy):
    x = jax.random.normal(jax.random.key(0), (1, 32, 2, 16), jnp.bfloat16)
    options = {"policy": policy, "is_causal": True, "implementation": implementation, "return_stats": True}
    (clean, before), (poisoned, after) = (attention(q, x, x, **options) for q in (x, x.at[0, 3, 1].set(jnp.nan)))
    assert np.isnan(poisoned[0, 3, 1].astype(float)).all()
    assert np.isnan(after.entropy[0, 1, 3])
    np.testing.assert_array_equal(np.isnan(after.entropy).sum(), 1)
    np.testing.assert_array_equal(poisoned.astype(float).at[0, 3, 1].set(0), clean.astype(float).at[0, 3, 1].set(0))
    np.testing.assert_array_equal(after.entropy.at[0, 1, 3].set(0), before.entropy.at[0, 1, 3].set(0))


@pytest.mark.parametrize(
    ("policy", "width", "lowering"),
    [(PAPER, 64, "mosaic"), (PAPER, 64, "triton"), (Constant(2.0), 128, "mosaic"), (EntropyTarget(1.0), 64, "triton")],
    ids=["paper, mosaic", "paper, triton", "constant", "entropy target"],
)
def test_kernels_lower_for_cuda_without_a_gpu(policy, width, lowering, monkeypatch):
    """The lowerings' own checks (powers of two, layouts, supported operations) run on any machine."""
    monkeypatch.setattr(dispatch, "_no_gpu", lambda who_needs, logits: None)
    monkeypatch.setattr(dispatch, "LOWERING", lowering)
    q, k = (jax.ShapeDtypeStruct((2, 1000, heads, width), jnp.bfloat16) for heads in (8, 2))

    def loss(q, k, v):
        output, stats = attention(q, k, v, policy=policy, is_causal=True, implementation="pallas", return_stats=True)
        return output.astype(jnp.float32).sum() + stats.entropy.sum()

    def windowed(q, k, v):
        return row_stats(q, k, window=100, implementation="pallas")

    def mapped(q, k, v):
        return jax.vmap(lambda q, k: windowed(q[None], k[None], v))(q, k)

    hopper = AbstractMesh((), (), abstract_device=AbstractDevice("NVIDIA H200", None, "gpu"))
    for function in (jax.grad(loss, (0, 1, 2)), windowed, mapped):
        with use_abstract_mesh(hopper):
            text = jax.jit(function).trace(q, k, k).lower(lowering_platforms=("cuda",)).as_text()
        assert ("sharpmax_statistics_mosaic" in text) == (lowering == "mosaic")
        assert "sharpmax_statistics" in text
