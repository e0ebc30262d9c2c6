"""A sharpened model for lm-evaluation-harness: any of its tasks, with a policy card.

    lm_eval.simple_evaluate(model=harness_model(load("smollm2"), "card.json"), tasks=["lambada_openai"])

The harness comes by itself: `pip install lm-eval`.
"""

from os import PathLike
from typing import Any

from sharpmax.core.policies import Policy
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.sharpen.switch import Sharpened, sharpen


def harness_model(
    loaded: LoadedModel, card: Policy | str | PathLike[str] | None = None, *, batch_size: int = 1, **options: Any
) -> Any:
    """Return the harness's own wrapper of a Hugging Face model, sharpened until `restore()` is called on it.

    `options` are those of `lm_eval.models.huggingface.HFLM`. Without a card it is the plain model: the baseline.

    Raises:
        ImportError: lm-eval is not installed.

    >>> lm_eval.simple_evaluate(model=harness_model(load("smollm2"), "smollm2"), tasks=["lambada"])  # doctest: +SKIP
    """
    try:
        from lm_eval.models.huggingface import HFLM
    except ModuleNotFoundError as error:
        raise ImportError(f"{error.name} is not installed; it comes with: pip install lm-eval") from error

    class SharpenedLM(HFLM):
        """HFLM with its policy switched on."""

        sharpened: Sharpened | None = None

        def restore(self) -> None:
            """Switch the policy off."""
            if self.sharpened is not None:
                self.sharpened.restore()

    wrapped = SharpenedLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=batch_size, **options)
    if card is not None:
        wrapped.sharpened = sharpen(loaded.model, card)
    return wrapped
