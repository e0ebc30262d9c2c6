"""A card, and what it needs of vLLM as a stand-in."""

import pytest

from tests.vllm import stand_in


@pytest.fixture
def card(monkeypatch, tmp_path):
    """The file of a card with a policy of its own for each of two layers."""
    stand_in.install(monkeypatch)
    stand_in.PER_LAYER.save(tmp_path / "card.json")
    return tmp_path / "card.json"
