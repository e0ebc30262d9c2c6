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
