"""Settings that every test shares."""

import os
from pathlib import Path

import hypothesis

# Machines are noisy: a property is judged by what it computes, not by how long one example took.
hypothesis.settings.register_profile("sharpmax", deadline=None, derandomize=True)
hypothesis.settings.load_profile("sharpmax")

# Without a GPU our Triton kernels run as Python. Triton asks when a kernel is defined: before any test imports one.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# JAX keeps what it compiled between runs, in programs that the tests start too; it reads this when it is imported.
# Processes may share the folder: an entry that another one is still writing cannot be read, and is compiled again.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sharpmax" / "jax-tests"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
