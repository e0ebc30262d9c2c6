"""Which softcaps a framework can honour in float32: e = c·tanh(x/c) needs c and 1/c, and a gradient their products."""

SMALLEST, LARGEST = 1e-30, 1e30


def check_softcap(softcap: float | None) -> None:
    """Raise unless there is no softcap, or one that float32 does not lose."""
    if softcap is not None and not SMALLEST <= softcap <= LARGEST:
        raise ValueError(f"softcap must be from {SMALLEST:g} to {LARGEST:g}, got {softcap!r}")
