"""Log figures through Hugging Face's Trainer in the middle of a step, beside what it logs itself."""

from typing import Any


def log_beside(trainer: Any, figures: dict[str, float]) -> None:
    """Log the figures, and leave the Trainer's own wish to log in this step as it was.

    `Trainer.log` takes that wish back, and the loss of the step would go missing.
    """
    control: Any = getattr(trainer, "control", None)
    wished = getattr(control, "should_log", None)
    trainer.log(figures)
    if wished is not None:
        control.should_log = wished
