"""What the tests of the commands share."""

import pytest

from sharpmax.hf.verbs import calibrate, judgement


@pytest.fixture
def fails_at_work(monkeypatch):
    """Fail as soon as the model is run on an exam or a fit."""
    for module, names in ((calibrate, ("learn", "match", "search", "choose")), (judgement, ("sit",))):
        for name in names:
            monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("the model was run"))
