"""Log figures through Hugging Face's Trainer in the middle of a step, beside what it logs itself."""

from typing import Any

from sharpmax.core.checks import is_count


def check_log(trainer: Any, every: Any, doing: str) -> None:
    """Raise ValueError for steps that are no count, and TypeError for a trainer without a log."""
    if not is_count(every, least=1):
        raise ValueError(f"expected to {doing} every 1 step or more, got {every!r}")
    if not callable(getattr(trainer, "log", None)):
        raise TypeError(f"expected the Trainer whose log gets the figures, got {type(trainer).__name__}")


def log_beside(trainer: Any, figures: dict[str, float]) -> None:
    """Log the figures, and leave the Trainer's own wish to log in this step as it was.

    `Trainer.log` takes that wish back, and the loss of the step would go missing.
    """
    control: Any = getattr(trainer, "control", None)
    wished = getattr(control, "should_log", None)
    trainer.log(figures)
    if wished is not None:
        control.should_log = wished
