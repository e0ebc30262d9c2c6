"""The plan: which implementation and kernels serve, by arguments and device, and why the faster ones do not."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharpmax import Constant, EntropyTarget, LogLinear, Policy
from sharpmax.jax import IMPLEMENTATIONS, attention, dispatch, row_stats, which_implementation
from tests.jax.conftest import ON_GPU

HALF = jnp.ones((1, 8, 1, 64), jnp.bfloat16)
NAMED = {"implementation": "pallas"}


@dataclass(frozen=True)
class ByVariance(Policy):
    """A policy that reads what one of the kernels gives, and does not solve for anything."""

    needs: ClassVar[frozenset[str]] = frozenset({"variance"})

    def __call__(self, stats):
        return 1 + stats.variance


class Gpu:
    """What is asked of a device."""

    platform = "gpu"

    def __init__(self, capability="9.0"):
        self.compute_capability = capability


def while_tracing(width=64, **options):
    plans = []
    jax.eval_shape(lambda x: plans.append(which_implementation(x, x, x, **options)), HALF[..., :width])
    return plans[0]


def test_the_plan_says_why():
    dropping = {"dropout": 0.1, "dropout_key": jax.random.key(0)}
    plan = which_implementation(HALF, HALF, HALF, **dropping)
    assert plan.implementation == "xla"
    assert set(plan.refused) == set(IMPLEMENTATIONS) - {"xla"}
    assert plan.refused["chunked"] == "dropout is drawn by 'xla' only"
    assert str(plan).splitlines()[0] == "xla: statistics by xla, values by xla"
    assert "  not chunked: dropout is drawn by 'xla' only" in str(plan).splitlines()
    with pytest.raises(NotImplementedError, match="'chunked' cannot serve this: dropout is drawn by 'xla' only"):
        attention(HALF, HALF, HALF, **dropping, implementation="chunked")


@pytest.mark.parametrize(
    ("capability", "options", "expected"),
    [
        ("9.0", {"policy": Constant(2.0)}, ("stock", "count", "cudnn")),
        ("9.0", {}, ("hybrid", "pallas_mosaic", "cudnn")),
        ("9.0", {"scale": -0.1}, ("hybrid", "pallas_triton", "cudnn")),  # the largest product is no maximum
        ("9.0", {"scale": 1e-30}, ("hybrid", "pallas_triton", "cudnn")),
        ("9.0", {"width": 32}, ("hybrid", "pallas_triton", "cudnn")),
        ("8.0", {}, ("hybrid", "pallas_triton", "cudnn")),
        ("12.0", {}, ("hybrid", "pallas_triton", "cudnn")),
        ("9.0", {"policy": LogLinear(0.1, 0.2, 0.3)}, ("hybrid", "pallas_mosaic", "cudnn")),
        ("9.0", {"policy": EntropyTarget(1.0)}, ("chunked", "chunked", "chunked")),
        ("9.0", {"policy": EntropyTarget(1.0)} | NAMED, ("pallas", "pallas_triton", "pallas_triton")),
        ("9.0", {"policy": ByVariance()}, ("chunked", "chunked", "chunked")),
        ("9.0", {"policy": ByVariance()} | NAMED, ("pallas", "pallas_triton", "pallas_triton")),
        ("9.0", {"window": 4}, ("pallas", "pallas_mosaic", "pallas_triton")),
        ("9.0", {"window": 4, "policy": Constant(2.0)}, ("pallas", "count", "pallas_triton")),
        ("9.0", {"softcap": 3.0}, ("chunked", "chunked", "chunked")),
        ("9.0", {"bias": jnp.zeros(8), "policy": Constant(2.0)}, ("chunked", "chunked", "chunked")),
        ("7.5", {}, ("chunked", "chunked", "chunked")),  # before Ampere
        ("gfx942", {}, ("chunked", "chunked", "chunked")),  # another vendor's: JAX calls its platform 'gpu' too
    ],
)
def test_arguments_and_device_decide(capability, options, expected, monkeypatch):
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: [Gpu(capability)])
    plan = while_tracing(**options)
    assert (plan.implementation, plan.statistics, plan.values) == expected
    if capability in ("7.5", "gfx942"):
        assert plan.refused["pallas"].endswith(f"8.0 or later, and this one's is {capability}")


def test_the_former_name_of_the_hybrid_is_taken(monkeypatch):
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: [Gpu()])
    assert while_tracing(implementation="pallas_cudnn").implementation == "hybrid"
    assert "pallas_cudnn" not in IMPLEMENTATIONS


@pytest.mark.skipif(ON_GPU, reason="here they are served")
@pytest.mark.parametrize("implementation", ["pallas", "hybrid", "stock"])
def test_off_the_gpu_they_are_refused(implementation):
    with pytest.raises(NotImplementedError, match="an NVIDIA GPU, and the arrays are on 'cpu'"):
        attention(HALF, HALF, HALF, policy=Constant(2.0), implementation=implementation)


def test_the_device_is_where_the_arrays_are(monkeypatch):
    """On a machine with a GPU, arrays of the CPU stay there; while tracing JAX's default device decides."""
    x = jax.device_put(HALF, jax.devices("cpu")[0])
    real = jax.local_devices
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: real(backend=backend) if backend else [Gpu()])
    assert which_implementation(x, x, x).implementation == "chunked"
    assert np.isfinite(attention(x, x, x)).all()
    assert while_tracing().implementation == "hybrid"
    for cpu in ("cpu", jax.devices("cpu")[0]):
        with jax.default_device(cpu):
            assert while_tracing().implementation == "chunked"


@pytest.mark.usefixtures("interpreted")
def test_a_lowering_that_there_is_not_is_refused(monkeypatch):
    monkeypatch.setattr(dispatch, "LOWERING", "mosiac")
    with pytest.raises(ValueError, match="LOWERING must be 'triton', 'mosaic' or None, got 'mosiac'"):
        row_stats(HALF, HALF, implementation="pallas")


def test_nothing_to_compute_is_served():
    q, k = jnp.ones((2, 20, 4, 8)), jnp.ones((2, 0, 2, 8))
    with pytest.raises(NotImplementedError, match="length 0"):
        attention(q, k, k, implementation="chunked")
    np.testing.assert_array_equal(attention(q, k, k), 0)
