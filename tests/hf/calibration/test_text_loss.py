"""Losses of text in windows: what has no next token to predict, or would be measured with dropout, is refused."""

import pytest

from sharpmax.hf.calibration.text_loss import text_losses
from tests.hf.tiny import tiny


@pytest.mark.parametrize("window", [1, 0, -1, 2.5, True])
def test_a_window_without_a_next_token_is_refused(window):
    with pytest.raises(ValueError, match=r"expected a window of 2 tokens or more, got "):
        text_losses(tiny("llama"), "a text", window=window)


def test_dropout_is_not_measured():
    loaded = tiny("gpt2", attn_pdrop=0.5)
    loaded.model.train()
    with pytest.raises(ValueError, match=r"tiny-gpt2 is in training mode, .*call model\.eval\(\)"):
        text_losses(loaded, "a text", window=4)
