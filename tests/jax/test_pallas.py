"""Our Pallas kernels by the interpreters, on the shared cases: what they serve is right, what they refuse says why."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from sharpmax import PAPER, Constant, LengthScaled
from sharpmax.jax import attention, cudnn, row_stats, which_implementation
from sharpmax.jax.pallas import attention as pallas
from sharpmax.jax.pallas import passes
from sharpmax.jax.request import validated
from tests.attention_cases import CASES
from tests.jax import on_a_hopper
from tests.jax.judging import in_jax, judge

ON_GPU = jax.default_backend() == "gpu"
BY_NAME = {case.name: case for case in CASES}
SERVED = ("grouped", "more queries than keys", "window to both sides")
REFUSED = {
    "odd width": "widths must be of",
    "padding": "mask is not honoured",
    "bias": "bias is not honoured",
    "softcap": "softcap is not honoured",
    "sinks": "sinks is not honoured",
    "entropy target": "variance",
}
REFUSED_BY_CUDNN = {
    "causal": "even lengths",
    "window": "window is not honoured",
    "fewer queries than keys": "first key",
}


@pytest.fixture
def _interpreted(monkeypatch):
    """Small tiles, so that these short rows take several; on a GPU compiled, elsewhere interpreted."""
    for name, setting in (("INTERPRET", not ON_GPU), ("LOWERING", "triton"), ("BLOCK_Q", 16), ("BLOCK_K", 16)):
        monkeypatch.setattr(passes, name, setting)
    monkeypatch.setattr(cudnn, "KERNEL", "cudnn" if ON_GPU else "xla")  # the algebra around cuDNN, without it


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("name", SERVED)
def test_kernels_keep_the_contract(name):
    judge(BY_NAME[name], "bfloat16", in_jax(BY_NAME[name], "bfloat16", implementation="pallas"))


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("name", REFUSED)
def test_what_the_kernels_refuse_says_why(name):
    with pytest.raises(NotImplementedError, match=REFUSED[name]):
        in_jax(BY_NAME[name], "bfloat16", implementation="pallas")


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("name", ["retrieval"])
def test_our_statistics_and_cudnn_s_values_keep_the_contract(name):
    judge(BY_NAME[name], "bfloat16", in_jax(BY_NAME[name], "bfloat16", implementation="pallas_cudnn"))


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("name", REFUSED_BY_CUDNN)
def test_what_cudnn_refuses_says_why(name):
    with pytest.raises(NotImplementedError, match=REFUSED_BY_CUDNN[name]):
        in_jax(BY_NAME[name], "bfloat16", implementation="pallas_cudnn")


@pytest.mark.usefixtures("_interpreted")
def test_stock_serves_policies_by_length_and_refuses_statistics():
    x = jax.random.normal(jax.random.key(0), (1, 32, 2, 16), jnp.bfloat16)
    for policy in (Constant(2.0), LengthScaled.ssmax(0.5)):
        plain, ours = (attention(x, x, x, policy=policy, is_causal=True, implementation=i) for i in ("stock", "xla"))
        # Both round a mean of values to bfloat16; stock rounds beta·q and the weights too.
        np.testing.assert_allclose(plain.astype(float), ours.astype(float), atol=4 * 2**-8 * float(jnp.abs(x).max()))
    for options in ({"policy": PAPER}, {"policy": Constant(2.0), "return_stats": True}):
        with pytest.raises(NotImplementedError, match="beyond the error budget"):
            attention(x, x, x, implementation="stock", **options)
    assert which_implementation(x, x, x, policy=Constant(2.0)).implementation == "stock"
    assert which_implementation(x, x, x, policy=PAPER).implementation == "pallas_cudnn"


@pytest.mark.usefixtures("_interpreted")
def test_float32_is_refused():
    with pytest.raises(NotImplementedError, match="half precision"):
        in_jax(BY_NAME["causal"], "float32", implementation="pallas")


@pytest.mark.skipif(ON_GPU, reason="here they are served")
@pytest.mark.parametrize("implementation", ["pallas", "pallas_cudnn", "stock"])
def test_off_the_gpu_they_are_refused(implementation):
    x = jnp.zeros((1, 8, 1, 16), jnp.bfloat16)
    with pytest.raises(NotImplementedError, match="an NVIDIA GPU, and the arrays are on 'cpu'"):
        attention(x, x, x, policy=Constant(2.0), implementation=implementation)


def test_the_ladder_looks_at_where_the_arrays_are(monkeypatch):
    """On a machine with a GPU, arrays of the CPU stay there; while tracing JAX's default device decides."""
    (x,) = (jax.device_put(jnp.ones((1, 8, 1, 16), jnp.bfloat16), cpu) for cpu in jax.devices("cpu")[:1])

    class Gpu:
        platform, compute_capability = "gpu", "9.0"

    real = jax.local_devices
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: real(backend=backend) if backend else [Gpu()])

    def while_tracing():
        chosen = []
        jax.eval_shape(lambda x: chosen.append(which_implementation(x, x, x).implementation), x)
        return chosen

    assert which_implementation(x, x, x).implementation == "chunked"
    assert np.isfinite(attention(x, x, x)).all()
    assert while_tracing() == ["pallas_cudnn"]
    for cpu in ("cpu", jax.devices("cpu")[0]):
        with jax.default_device(cpu):
            assert while_tracing() == ["chunked"]


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ("8.0", "pallas_cudnn"),
        ("9.0", "pallas_cudnn"),
        ("12.0", "pallas_cudnn"),
        ("7.5", "chunked"),
        ("gfx942", "chunked"),
    ],
)
def test_a_gpu_that_neither_kernel_is_made_for_gets_none_of_them(capability, expected, monkeypatch):
    """One before Ampere, or another vendor's: JAX calls its platform 'gpu' too."""

    class Gpu:
        platform, compute_capability = "gpu", capability

    monkeypatch.setattr(jax, "local_devices", lambda backend=None: [Gpu()])
    x, chosen = jnp.ones((1, 8, 1, 16), jnp.bfloat16), []
    jax.eval_shape(lambda x: chosen.append(which_implementation(x, x, x)), x)
    assert chosen[0].implementation == expected
    if expected == "chunked":
        assert chosen[0].refused["pallas"].endswith(f"8.0 or later, and this one's is {capability}")


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("policy", [PAPER, Constant(1e5), LengthScaled.ssmax(0.5), Constant(jnp.ones(()))])
def test_float16_is_refused_where_beta_times_q_may_leave_its_range(policy):
    x = jax.random.normal(jax.random.key(0), (1, 8, 1, 16), jnp.float16)
    for implementation in ("stock", "pallas_cudnn"):
        with pytest.raises(NotImplementedError, match=r"65,504|beyond the error budget"):
            attention(x, x, x, policy=policy, implementation=implementation)
    assert which_implementation(x, x, x, policy=policy).implementation == "pallas"
    assert np.isfinite(attention(x, x, x, policy=policy)).all()


@pytest.mark.usefixtures("_interpreted")
def test_a_lowering_that_there_is_not_is_refused(monkeypatch):
    monkeypatch.setattr(passes, "LOWERING", "mosiac")
    x = jnp.zeros((1, 8, 1, 16), jnp.bfloat16)
    with pytest.raises(ValueError, match="LOWERING must be 'triton', 'mosaic' or None, got 'mosiac'"):
        row_stats(x, x, implementation="pallas")


@pytest.mark.parametrize(
    ("width", "scale", "serves"), [(64, 0.1, True), (32, 0.1, False), (64, -0.1, False), (64, 1e-30, False)]
)
def test_mosaic_s_kernels_serve_where_a_row_s_largest_product_is_its_maximum(width, scale, serves, monkeypatch):
    monkeypatch.setattr(passes, "LOWERING", "mosaic")
    x = jnp.zeros((1, 8, 1, width), jnp.bfloat16)
    assert passes._by_mosaic(validated(x, x, x, policy=PAPER, scale=scale).logits) == serves


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("implementation", ["pallas", "pallas_cudnn"])
def test_hessian_products_are_not_the_kernels(implementation):
    x = jax.random.normal(jax.random.key(0), (1, 32, 2, 16), jnp.bfloat16)
    slope = jax.grad(lambda q: attention(q, x, x, implementation=implementation).sum())
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(slope, (x,), (x,))


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


@pytest.mark.usefixtures("_interpreted", "_maxima")
@pytest.mark.parametrize("implementation", ["pallas", "pallas_cudnn"])
def test_a_poisoned_row_poisons_no_other(implementation):
    x = jax.random.normal(jax.random.key(0), (1, 32, 2, 16), jnp.bfloat16)
    options = {"is_causal": True, "implementation": implementation, "return_stats": True}
    (clean, before), (poisoned, after) = (attention(q, x, x, **options) for q in (x, x.at[0, 3, 1].set(jnp.nan)))
    assert np.isnan(poisoned[0, 3, 1].astype(float)).all()
    assert np.isnan(after.entropy[0, 1, 3])
    np.testing.assert_array_equal(np.isnan(after.entropy).sum(), 1)
    np.testing.assert_array_equal(poisoned.astype(float).at[0, 3, 1].set(0), clean.astype(float).at[0, 3, 1].set(0))
    np.testing.assert_array_equal(after.entropy.at[0, 1, 3].set(0), before.entropy.at[0, 1, 3].set(0))


@pytest.mark.usefixtures("_interpreted")
def test_float16_that_is_not_sharpened_is_served():
    x = jax.random.normal(jax.random.key(0), (1, 8, 1, 16), jnp.float16)
    assert which_implementation(x, x, x, policy=Constant(1.0)).implementation == "stock"


@pytest.mark.skipif(not ON_GPU, reason="long ones by the interpreter take minutes")
@pytest.mark.parametrize("case", [on_a_hopper.CASE, *on_a_hopper.LONGER], ids=lambda case: case.name)
def test_mosaic_statistics_and_gradients_on_a_hopper(case, monkeypatch):
    if jax.devices()[0].compute_capability != "9.0":
        pytest.skip("they are made for Hopper")
    monkeypatch.setattr(passes, "LOWERING", "mosaic")
    on_a_hopper.judge(case)


@pytest.mark.skipif(not ON_GPU, reason="by the interpreter it takes long: on_a_hopper.py vmap")
def test_mosaic_under_vmap_on_a_hopper(monkeypatch):
    if jax.devices()[0].compute_capability != "9.0":
        pytest.skip("they are made for Hopper")
    monkeypatch.setattr(passes, "LOWERING", "mosaic")
    on_a_hopper.judge_mapped(on_a_hopper.CASE)


@pytest.mark.skipif(ON_GPU, reason="here they are compiled")
def test_mosaic_statistics_and_gradients_by_the_interpreter():
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, on_a_hopper.__file__],
        env={**os.environ, **flags, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("policy", "width", "lowering"),
    [(PAPER, 64, "mosaic"), (PAPER, 64, "triton"), (Constant(2.0), 128, "mosaic")],
    ids=["paper, mosaic", "paper, triton", "constant"],
)
def test_kernels_lower_for_cuda_without_a_gpu(policy, width, lowering, monkeypatch):
    """The lowerings' own checks (powers of two, layouts, supported operations) run on any machine."""
    monkeypatch.setattr(pallas, "refusal", lambda request: None)
    monkeypatch.setattr(passes, "LOWERING", lowering)
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
