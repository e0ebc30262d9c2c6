"""What the tests of the commands share."""

import pytest

import sharpmax
from sharpmax.hf.verbs import calibrate, judgement
from tests.hf.tiny import tiny


@pytest.fixture(scope="package")
def big():
    """A tiny model of 2,048 tokens, which no test changes."""
    return tiny("llama", max_position_embeddings=2048)


@pytest.fixture
def card(tmp_path):
    """The file of a card that changes little."""
    sharpmax.Constant(1.1).save(tmp_path / "card.json")
    return tmp_path / "card.json"


@pytest.fixture
def fails_at_work(monkeypatch):
    """Fail as soon as the model is run on an exam or a fit."""
    for module, names in ((calibrate, ("learn", "match", "search", "choose")), (judgement, ("sit",))):
        for name in names:
            monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("the model was run"))
