"""One tiny model for all tests of calibration: none of them changes its weights."""

import pytest

from tests.hf.tiny import tiny


@pytest.fixture(scope="package")
def loaded():
    return tiny("llama", max_position_embeddings=512)
