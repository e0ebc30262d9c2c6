"""Whether Triton can run our kernels, and how. This module can be imported without Triton."""

import os

OLDEST = (3, 6)  # PyTorch 2.10's; before it Gluon, the language of our kernels for Hopper, had other calls


def why_absent() -> str | None:
    """Return why our kernels cannot be imported, or None where they can."""
    try:
        import triton

        found = triton.__version__
    except (ImportError, AttributeError):  # the second: a mere folder of that name
        return "Triton is not installed"
    if tuple(map(int, found.split(".")[:2])) < OLDEST:
        return f"it needs Triton {'.'.join(map(str, OLDEST))} or later, found {found}"
    return None


def interpreted() -> bool:
    """Tell whether Triton runs kernels as Python on the CPU (TRITON_INTERPRET=1), for tests without a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"
