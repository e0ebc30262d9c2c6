"""Mosaic's statistics and gradients: on a Hopper GPU at length, elsewhere short, by Pallas's interpreter."""

import subprocess
import sys

import jax
import pytest

from sharpmax.jax import dispatch
from tests.jax.conftest import ON_GPU
from tests.jax.pallas.hopper import on_a_hopper
from tests.jax.subprocesses import cpu_devices


@pytest.mark.gpu
@pytest.mark.parametrize("case", [on_a_hopper.CASE, *on_a_hopper.LONGER], ids=lambda case: case.name)
def test_mosaic_statistics_and_gradients_on_a_hopper(case, monkeypatch):
    if jax.devices()[0].compute_capability != "9.0":
        pytest.skip("they are made for Hopper")
    monkeypatch.setattr(dispatch, "LOWERING", "mosaic")
    on_a_hopper.judge(case)


@pytest.mark.gpu
def test_mosaic_under_vmap_on_a_hopper(monkeypatch):
    if jax.devices()[0].compute_capability != "9.0":
        pytest.skip("they are made for Hopper")
    monkeypatch.setattr(dispatch, "LOWERING", "mosaic")
    on_a_hopper.judge_mapped(on_a_hopper.CASE)


@pytest.mark.skipif(ON_GPU, reason="here they are compiled")
@pytest.mark.slow
@pytest.mark.parametrize("what", ["short", "whole"])
def test_by_the_interpreter(what):
    command = [sys.executable, on_a_hopper.__file__, what]
    done = subprocess.run(command, env=cpu_devices(8), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
