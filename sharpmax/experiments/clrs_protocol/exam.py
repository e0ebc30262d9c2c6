"""Ask trained models: how likely the right answer is, which of its tokens are wrong and how, and what decoding says.

One pass over question and answer gives the log-likelihood, and for every token whether it is the likeliest after the
right ones before it. Then, and only then, greedy decoding says the whole answer. What a wrong answer goes on to say
only decoding tells; it answers the first question of every length and validation seed.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from sharpmax.core.policies import Beyond
from sharpmax.experiments.clrs_protocol.data import MULTIPLE, Questions, padded, places_of
from sharpmax.experiments.compare.train import Hardware
from sharpmax.extras import extra
from sharpmax.models.mechanisms import Sharpened
from sharpmax.models.transformer import PRECISIONS, Transformer, float32_products
from sharpmax.tasks.clrs_text.protocol import LONGEST_TRAINED
from sharpmax.tasks.clrs_text.sequences import Sequences, most_tokens
from sharpmax.tasks.clrs_text.tokens import ENDS, mistakes

with extra("torch"):
    import torch
    from torch import Tensor

ENTRIES = {False: 2**24, True: 2**28}  # logits of attention at once, all seeds and heads together; True: on a GPU
EXAM_SEED = 2**31  # of the positions of questions; far from every seed that is trained with
BEYOND = 4  # tokens that decoding may go on after the right answer's length


def asked_with(model: Transformer, algorithm: str) -> Transformer:
    """Return the model with `Beyond` set to the keys of the algorithm's longest training row; others as they are."""
    mechanism = model.mechanism
    if isinstance(mechanism, Sharpened) and isinstance(mechanism.policy, Beyond):
        trained = float(most_tokens(algorithm, LONGEST_TRAINED[algorithm]))
        return replace(model, mechanism=Sharpened(replace(mechanism.policy, trained=trained)))
    return model


@torch.no_grad()
def examine(
    model: Transformer, params: Tensor, algorithm: str, asked: Questions, *, hardware: Hardware
) -> list[dict[str, Any]]:
    """Return one record per seed: log-likelihoods, the wrong tokens of wrong answers, and what decoding said."""
    model, named = asked_with(model, algorithm), model.named(params)
    places = model.places(asked.rows.tokens[None].to(params.device), EXAM_SEED)
    found: list[dict[str, Any]] = [
        {"log_likelihood": [0.0] * len(asked.lengths), "wrong": {}, "decoded": {}} for _ in params
    ]
    precision = PRECISIONS[hardware.asking]
    firsts = torch.tensor(asked.firsts).nonzero()[:, 0]
    with float32_products(precision.float32):
        for judge, some in ((_judge, torch.arange(len(asked.lengths))), (_decode, firsts)):
            for chosen, width in _parts(model, params, asked.rows.ends, some):
                tokens, starts, ends = (part[chosen] for part in asked.rows)
                part = Sequences(padded(tokens, width), starts, ends)
                where = None
                if places is not None:
                    where = _widened(places[:, chosen.to(places.device)], width).expand(len(params), -1, -1)
                ask = partial(model, named, places=where, precision=precision, streaming=False)
                judge(ask, part, chosen.tolist(), found, params.device)
    return found


def _widened(places: Tensor, width: int) -> Tensor:
    """Return positions of rows of that width; beyond the longest row they are all the last one, and count for none."""
    missing = max(0, width - places.shape[-1])
    return torch.cat((places[..., :width], places[..., -1:].expand(*places.shape[:-1], missing)), dim=-1)


def _parts(model: Transformer, params: Tensor, ends: Tensor, some: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Yield questions of like length, as many as fit the memory, and how wide their rows are, with room to decode."""
    entries = ENTRIES[params.device.type == "cuda"] // (len(params) * model.heads)
    order = some[ends[some].sort(stable=True, descending=True).indices]
    while len(order):
        longest = int(ends[order[0]]) + BEYOND
        width = longest + -longest % MULTIPLE
        count = max(1, entries // width**2)
        yield order[:count], width
        order = order[count:]


Ask = Callable[..., Tensor]
"""The model with its parameters and positions: tokens, and the places to return logits of."""


def _judge(ask: Ask, part: Sequences, chosen: list[int], found: list[dict[str, Any]], device: torch.device) -> None:
    """Add the log-likelihood of every answer, and a letter per token of those that are wrong."""
    seeds = len(found)
    at, inside = places_of(part, int((part.ends - part.starts).max()))
    tokens, at = (each.to(device).expand(seeds, *each.shape) for each in (part.tokens, at))
    inside = inside.to(device)
    logits = ask(tokens, at=at)
    right = tokens.gather(2, at + 1)
    likely = logits.log_softmax(-1).gather(3, right[..., None])[..., 0]
    totals = torch.where(inside, likely, 0.0).sum(-1)
    said = logits.argmax(-1)
    exact = ((said == right) | ~inside).all(-1)
    answers = _answers(part)
    for record, total, whole, spoken in zip(found, totals.tolist(), exact.tolist(), said.tolist(), strict=True):
        for row, question in enumerate(chosen):
            record["log_likelihood"][question] = round(total[row], 4)
            if not whole[row]:
                record["wrong"][str(question)] = mistakes(spoken[row][: len(answers[row])], answers[row])


def _decode(ask: Ask, part: Sequences, chosen: list[int], found: list[dict[str, Any]], device: torch.device) -> None:
    """Add what greedy decoding says: a letter per token, as far as the right answer goes, and how many were said."""
    tokens = part.tokens.to(device).expand(len(found), *part.tokens.shape).clone()
    starts, limit = part.starts.to(device), part.ends.to(device) + BEYOND
    running = torch.ones(tokens.shape[:2], dtype=torch.bool, device=device)
    ended = torch.zeros_like(tokens[..., 0])
    ends = torch.tensor(ENDS, device=device)
    place = starts.expand(len(found), -1)
    while bool(running.any()):
        said = ask(tokens, at=place[..., None] - 1).argmax(-1)
        before = tokens.gather(2, place[..., None])
        tokens.scatter_(2, place[..., None], torch.where(running[..., None], said, before))
        stops = running & (torch.isin(said[..., 0], ends) | (place + 1 >= limit))
        ended = torch.where(stops, place + 1, ended)
        running &= ~stops
        place = (place + 1).clamp(max=tokens.shape[2] - 1)
    answers, begins = _answers(part), part.starts.tolist()
    for record, spoken, stop in zip(found, tokens.tolist(), ended.tolist(), strict=True):
        for row, question in enumerate(chosen):
            own = spoken[row][begins[row] : stop[row]]
            both = min(len(own), len(answers[row]))
            record["decoded"][str(question)] = [mistakes(own[:both], answers[row][:both]), len(own)]


def _answers(part: Sequences) -> list[list[int]]:
    bounds = zip(part.tokens.tolist(), part.starts.tolist(), part.ends.tolist(), strict=True)
    return [row[start:end] for row, start, end in bounds]
