"""Products in full float32: on a GPU both sides would otherwise round to TF32, each in its own place."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _full_precision():
    with jax.default_matmul_precision("highest"):
        yield
