"""A causal model asked for its answers alone: logits only where an answer token is predicted, never over the question.

With a vocabulary of tens of thousands the logits of a whole batch are gigabytes; answers are a fraction of it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any, NamedTuple

import numpy as np

from sharpmax.extras import extra
from sharpmax.hf.finetune.answer_batches import Encoded, all_once, pad
from sharpmax.hf.finetune.packing import Layout, Packing, packing
from sharpmax.hf.models.head import finished
from sharpmax.torch.documents import Documents

with extra("hf"):
    import torch
    from torch import Tensor, nn
    from torch.nn import functional


LEFT_BEHIND = ("forward", "_original_forward", "_is_accelerate_prepared")
"""What accelerate leaves on a model. It wraps forward in autocast, once: a model it finds marked trains without."""


def answer_logits(model: Any, input_ids: Tensor, predicted_from: Tensor, position_ids: Tensor | None = None) -> Tensor:
    """Return the logits over the vocabulary (answer tokens, vocabulary) from which each answer token is predicted."""
    hidden = model.base_model(input_ids=input_ids, position_ids=position_ids, use_cache=False).last_hidden_state
    return finished(model.config, model.get_output_embeddings()(hidden.flatten(0, 1)[predicted_from]).float())


@contextmanager
def answering(model: nn.Module) -> Iterator[None]:
    """Inside this block a call of the model takes a row of `pack` and returns `{"loss": its part of the step's}`.

    It is the model's own forward that is replaced, so whatever wraps the model (DDP, FSDP, PEFT) stays around it.
    """
    causal = innermost(model)
    before = [(module, name, module.__dict__.get(name)) for module in {model, causal} for name in LEFT_BEHIND]
    try:
        with packing(causal) as row:
            causal.forward = MethodType(partial(_loss, row), causal)
            yield
    finally:
        for module, name, value in before:
            module.__dict__.pop(name, None)
            if value is not None:
                module.__dict__[name] = value


def innermost(model: Any) -> Any:
    """Return the transformers model inside a PEFT model, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@torch.no_grad()
def right_tokens(model: Any, examples: Sequence[Encoded], *, tokens: int = 32768) -> list[int]:
    """Return how many answer tokens of each example are the likeliest after what stands before them.

    All of them are if, and only if, greedy decoding gives the answer and then ends it. `tokens` bounds a batch.
    """
    found = _each(model, examples, tokens, lambda logits, targets: logits.argmax(-1) == targets)
    return [int(right.sum()) for right in found]


@torch.no_grad()
def mean_loss(model: Any, examples: Sequence[Encoded], *, tokens: int = 32768) -> float:
    """Return what training lowers, on examples it may not have seen: the mean over them of each one's mean loss."""
    found = _each(model, examples, tokens, lambda logits, at: functional.cross_entropy(logits, at, reduction="none"))
    return float(np.mean([losses.mean() for losses in found]))


@torch.no_grad()
def each_answer(
    model: Any, examples: Sequence[Encoded], *, tokens: int = 32768
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the log-likelihood of every answer token, and the likeliest token in its place, by example."""

    def measure(logits: Tensor, targets: Tensor) -> Tensor:
        likely = logits.log_softmax(-1).gather(1, targets[:, None])
        return torch.cat((likely, logits.argmax(-1, keepdim=True).float()), dim=1)

    found = _each(model, examples, tokens, measure)
    return [each[:, 0] for each in found], [each[:, 1].astype(np.int64) for each in found]


def _each(model: Any, examples: Sequence[Encoded], tokens: int, measure: Callable[..., Tensor]) -> list[np.ndarray]:
    """Return `measure(logits, targets)` at every answer token, by example."""
    causal = innermost(model)
    causal.eval()
    found: list[np.ndarray] = [np.empty(0)] * len(examples)
    for chosen in all_once([len(example.ids) for example in examples], tokens=tokens):
        batch = {name: tensor.to(causal.device) for name, tensor in pad(examples, chosen).items()}
        targets = batch.pop("targets")
        measured = measure(answer_logits(causal, **batch), targets).cpu().numpy()
        ends = np.cumsum([len(examples[i].ids) - examples[i].start for i in chosen])
        for index, of_one in zip(chosen, np.split(measured, ends[:-1]), strict=True):
            found[index] = of_one
    return found


@torch.no_grad()
def generated(model: Any, example: Encoded) -> list[int]:
    """Return the tokens that greedy decoding, with its cache, gives after the question: as many as the answer has.

    It neither stops at the model's own end of text nor is kept from saying it, which would make the next best win.
    """
    causal = innermost(model)
    causal.eval()
    prompt = torch.tensor([example.ids[: example.start].tolist()], device=causal.device)
    count = len(example.ids) - example.start
    options = {"max_new_tokens": count, "eos_token_id": None, "do_sample": False, "pad_token_id": 0}
    said = causal.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    answer: list[int] = said[0, example.start :].tolist()
    return answer


class Parting(NamedTuple):
    """Where generation and one pass part: at which token of the answer, by how much, and the likeliest one's logit."""

    token: int
    lead: float
    logit: float


@torch.no_grad()
def parting(model: Any, example: Encoded, said: Sequence[int]) -> Parting:
    """Return where generation and one pass over the answer part, and how far apart the two tokens' logits are there.

    That is the first token that was `said` otherwise than the answer has it, and the answer's logit minus the other's;
    or, where the answer itself was said, the token that one pass would least have said, and its logit minus the best.
    A tie but for rounding has a lead of about 0, whichever sign: a few steps of the precision at that logit.
    """
    causal = innermost(model)
    causal.eval()
    batch = {name: tensor.to(causal.device) for name, tensor in pad([example], [0]).items()}
    answer = batch.pop("targets")
    logits = answer_logits(causal, **batch)
    best = logits.amax(1)
    own = logits.gather(1, answer[:, None])[:, 0]
    other = torch.tensor(said, device=causal.device)
    if (differs := (other != answer).nonzero()).numel():
        token = int(differs[0])
        return Parting(token, float(own[token] - logits[token, other[token]]), float(best[token]))
    token = int((own - best).argmin())
    return Parting(token, float(own[token] - best[token]), float(best[token]))


def _loss(
    row: Packing,
    self: Any,
    input_ids: Tensor,
    position_ids: Tensor,
    predicted_from: Tensor,
    targets: Tensor,
    weights: Tensor,
    places: Tensor,
    cells: Tensor,
    shapes: Any,
    cumulative: Tensor,
    starts: Tensor,
    ends: Tensor,
    longest: int,
    **_: Any,
) -> dict[str, Tensor]:
    row.layout = Layout(shapes, places, cells, Documents(cumulative, starts, ends, longest))
    logits = answer_logits(self, input_ids, predicted_from, position_ids)
    losses = functional.cross_entropy(logits, targets, reduction="none")
    return {"loss": (losses * weights).sum()}  # not losses @ weights: autocast would round that to half precision
