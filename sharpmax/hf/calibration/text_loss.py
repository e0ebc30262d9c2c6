"""How well a causal model predicts text: the mean loss in nats of each token, in windows that do not overlap."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from sharpmax.core.checks import is_count
from sharpmax.hf.models.head import require_known_head
from sharpmax.hf.models.load import LoadedModel, must_be_in_evaluation


def windows(ids: Tensor, length: int) -> Iterator[Tensor]:
    """Cut ids (1, n) into whole windows (1, length); the rest is left out.

    Raises:
        ValueError: not even one window.
    """
    count = ids.shape[1] // length
    if not count:
        raise ValueError(
            f"expected a text of at least {length} tokens, got {ids.shape[1]}; give more or shorten the window"
        )
    for index in range(count):
        yield ids[:, index * length : (index + 1) * length]


def token_losses(loaded: LoadedModel, ids: Tensor, *, chunk: int = 512) -> Tensor:
    """Return the loss in nats of each token after the first, (batch, length - 1), in float32.

    The logits over the vocabulary are made a chunk of tokens at a time: at 8,192 tokens they would fill gigabytes.
    """
    hidden = loaded.hidden(ids)[:, :-1]
    losses = []
    for start in range(0, hidden.shape[1], chunk):
        logits = loaded.logits(hidden[:, start : start + chunk])
        target = ids[:, 1 + start : 1 + start + logits.shape[1]]
        of_tokens = functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
        losses.append(of_tokens.view(target.shape))
    return torch.cat(losses, dim=1)


@torch.no_grad()
def text_losses(
    loaded: LoadedModel,
    text: str | Tensor,
    *,
    window: int,
    tokens: int = 1,
    read: Callable[[int], None] = lambda _: None,
) -> list[float]:
    """Return the mean loss in nats of each whole window of the text; perplexity is exp of their mean.

    The text may come as its ids, (1, n). Windows are read together up to that many `tokens`, and one by one where a
    window is longer. `read` is told of tokens as they are read.

    Raises:
        ValueError: a model that is no causal one or is in training mode, a window below 2 tokens, or a text of not even
            one window.
        NotImplementedError: a model that does more to its logits than `sharpmax.hf.models.head` knows.
    """
    if not loaded.generates:
        raise ValueError(f"{loaded.name} is not a causal language model: it has no next-token loss")
    if not is_count(window, least=2):  # a token alone has no next one to predict
        raise ValueError(f"expected a window of 2 tokens or more, got {window!r}")
    must_be_in_evaluation(loaded)
    require_known_head(loaded.model)
    ids = loaded.tokens(text) if isinstance(text, str) else text
    together = torch.split(torch.cat(list(windows(ids, window))), max(1, tokens // window))
    losses = []
    for part in together:
        losses += token_losses(loaded, part).mean(dim=1).tolist()
        read(part.numel())
    return losses
