"""Parameters whose tests are slow: `make test` leaves them out, `make test-slow` runs them."""

import pytest


def slow(*values):
    """Return each value as a parameter marked slow."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]
