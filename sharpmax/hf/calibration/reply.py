"""Let a causal model answer in its own words, greedily: for answers that are right in more than one order."""

from sharpmax.extras import extra
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.models.quiet import quiet

with extra("hf"):
    import torch


@torch.no_grad()
def reply(loaded: LoadedModel, text: str, tokens: int) -> str:
    """Return what the model says after a text, at most so many tokens, greedily.

    >>> reply(loaded, "The code of the red door is", 8)  # doctest: +SKIP
    ' 4711.'
    """
    ids = loaded.tokens(text)
    end = loaded.tokenizer.eos_token_id
    how = {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0 if end is None else end}
    with quiet():
        said = loaded.model.generate(ids, attention_mask=torch.ones_like(ids), **how)
    return str(loaded.tokenizer.decode(said[0, ids.shape[1] :]))
