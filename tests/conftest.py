"""Settings that every test shares."""

import gc
import importlib.util
import os
from pathlib import Path

import pytest

HAS_GPU = Path("/dev/nvidiactl").exists()

# A machine that only runs the kernels (`make test-gpu`) may lack it.
if importlib.util.find_spec("hypothesis"):
    import hypothesis

    # Machines are noisy: a property is judged by what it computes, not by how long one example took.
    hypothesis.settings.register_profile("sharpmax", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("sharpmax")

# Without a GPU our Triton kernels run as Python. Triton asks when a kernel is defined: before any test imports one.
if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")

# JAX keeps what it compiled between runs, in programs that the tests start too; it reads this when it is imported.
# Processes may share the folder: an entry that another one is still writing cannot be read, and is compiled again.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sharpmax" / "jax-tests"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def pytest_collection_finish():
    """Leave what is imported out of garbage collection: walking it again and again is an eighth of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def pytest_runtest_setup(item):
    """Fail a test that was asked to run on a GPU where there is none: a skip would look like a success."""
    if item.get_closest_marker("gpu") and not HAS_GPU:
        pytest.fail("this test needs a GPU, and this machine has none; leave it out with -m 'not gpu'", pytrace=False)
