"""One tiny model for all tests of calibration: none of them changes its weights."""

import pytest

from tests.hf.calibration.questions import TEXT
from tests.hf.tiny import tiny


@pytest.fixture(scope="package")
def loaded():
    return tiny("llama", max_position_embeddings=512)


@pytest.fixture
def ids(loaded):
    """The first tokens of the text."""
    return loaded.tokens(TEXT)[:, :48]
