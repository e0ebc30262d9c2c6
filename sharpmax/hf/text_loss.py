"""The import path that the docs name; the code stands in `calibration/`."""

from sharpmax.hf.calibration.text_loss import text_losses, token_losses, windows

__all__ = ["text_losses", "token_losses", "windows"]
