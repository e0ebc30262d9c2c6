"""Diagnose a model: what every head does at every length, on a text or on prompts.

A causal model reads the longest text once: its row i sees i + 1 keys (in a layer with a window, the last of them), so
one pass holds every length. An encoder sees everything from everywhere, so it reads a text of each length; so do an
encoder and its decoder, both the same one. On a prompt the row that matters is the last: the one that has to answer.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sharpmax.dispersion import Dispersion
from sharpmax.hf.calibration.answers import Answered, Question, answer_tokens, write
from sharpmax.hf.diagnosis.probe import RowProbe
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.sharpen.layers import attention_layers
from sharpmax.hf.sharpen.site import Probe
from sharpmax.hf.sharpen.switch import sharpen
from sharpmax.runs.progress import Advance, stage

TOLERANCE = 0.06
"""Rows whose n is at most this share below a length count as of that length."""
SAMPLED = 20_000  # characters of a text from which it is told how much of it a tokenizer can write
WRITTEN = 0.5  # share of them below which figures are not of the text
UNWRITTEN = "not of this text:"
"""What a sentence begins with that says so."""


@torch.no_grad()
def diagnose_text(loaded: LoadedModel, text: str, lengths: Sequence[int], *, rows: int = 64) -> Dispersion:
    """Measure `rows` rows of every head at each length (tokens up to the row, itself included) on one text.

    Raises:
        NotImplementedError: a model that does not read text.
        ValueError: a text or a context shorter than the longest length, or fewer than one length or row.
    """
    lengths, ids = checked_text(loaded, text, lengths, rows)
    names = layer_names(loaded)
    if loaded.generates:
        wanted = torch.cat([_last_rows(length, rows) for length in lengths])
        probe = RowProbe(lambda _: wanted, lambda index: _nearest(index + 1, lengths), keep=True)
        reading = stage(f"reading {lengths[-1]:,} tokens", len(names))
        with reading as advance, sharpen(loaded.model, probe=_counting(probe, advance)):
            loaded.model.base_model(input_ids=ids[:, : lengths[-1]], use_cache=False)
        return probe.dispersion(names)
    current = 0
    if loaded.model.config.is_encoder_decoder:
        probe = RowProbe(lambda queries: _last_rows(queries, rows), lambda _: current, keep=True)
    else:
        probe = RowProbe(lambda n: torch.linspace(0, n - 1, min(rows, n)).long(), lambda _: current, keep=True)
    total = len(names) * len(lengths)
    with stage("reading each length", total) as advance, sharpen(loaded.model, probe=_counting(probe, advance)):
        for current in lengths:
            # The end marker belongs to the text: an encoder sees it at every length.
            _read(loaded, torch.cat([ids[:, : current - 1], ids[:, -1:]], dim=1), decoded=current)
    return probe.dispersion(names)


@torch.no_grad()
def diagnose_prompts(loaded: LoadedModel, prompts: dict[int, list[str]]) -> Dispersion:
    """Measure the last row of every head on prompts, gathered by the size each is listed under.

    The lengths of the result are the sizes (how many items a prompt holds), not tokens. A decoder with an encoder in
    front answers at its first token.
    """
    must_read_text(loaded)
    if not prompts or not all(prompts.values()):
        raise ValueError("expected at least one prompt at each size")
    current = 0
    probe = RowProbe(lambda queries: torch.tensor([queries - 1]), lambda _: current, keep=True)
    characters = sum(len(text) for texts in prompts.values() for text in texts)
    with stage("reading prompts", characters) as advance, sharpen(loaded.model, probe=probe):
        for current, texts in sorted(prompts.items()):
            for text in texts:
                ids = loaded.tokens(text)
                if ids.shape[1] > loaded.context:
                    raise ValueError(
                        f"a prompt of size {current} has {ids.shape[1]} tokens; {loaded.name} holds {loaded.context}"
                    )
                _read(loaded, ids, decoded=1)
                advance(len(text))
    return probe.dispersion(layer_names(loaded))


@torch.no_grad()
def diagnose_questions(
    loaded: LoadedModel, questions: dict[int, list[Question]]
) -> tuple[Dispersion, dict[int, list[Answered]]]:
    """Measure the row that has to answer of every head, and whether the answer is right, in one pass of each question.

    For a causal model, whose rows see nothing of the answer that follows them.

    Raises:
        ValueError: a question that does not fit the model, or that its tokens cannot tell from the answer.
    """
    must_read_text(loaded)
    current, asked = 0, 0
    probe = RowProbe(lambda _: torch.tensor([asked]), lambda _: current, keep=True)
    answered: dict[int, list[Answered]] = {}
    characters = sum(len("".join(parts)) for of in questions.values() for parts in of)
    with stage("asking questions, characters", characters) as advance, sharpen(loaded.model, probe=probe):
        for current, of_size in sorted(questions.items()):
            for question, written in zip(of_size, write(loaded.tokenizer, loaded.name, of_size), strict=True):
                asked = written.answers[0].start - 1
                losses, right = answer_tokens(loaded, [written])
                found = Answered(float(losses[0].mean()), bool(right[0].all()))
                answered.setdefault(current, []).append(found)
                advance(len("".join(question)))
    return probe.dispersion(layer_names(loaded)), answered


def _counting(probe: RowProbe, advance: Advance) -> Probe:
    """Return a probe that also moves a bar, by one at every layer that was observed."""

    def observe(*call: Any) -> None:
        probe(*call)
        advance()

    return observe


def _read(loaded: LoadedModel, ids: torch.Tensor, *, decoded: int) -> None:
    """Let the model read a text, and its decoder, if it has one beside an encoder, so many tokens of the same."""
    if loaded.model.config.is_encoder_decoder:
        loaded.model.base_model(input_ids=ids, decoder_input_ids=ids[:, :decoded], use_cache=False)
    elif loaded.generates:
        loaded.model.base_model(input_ids=ids, use_cache=False)
    else:  # by its own forward: ALBERT's one block has to know which pass it is in
        loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids))


def checked_text(loaded: LoadedModel, text: str, lengths: Sequence[int], rows: int) -> tuple[list[int], torch.Tensor]:
    """Return the lengths in rising order and the ids of the text, (1, n), or raise as `diagnose_text` says."""
    must_read_text(loaded)
    lengths = checked_lengths(loaded, lengths)
    if rows < 1:
        raise ValueError(f"expected 1 row or more to observe at each length, got {rows}")
    ids = loaded.tokens(text)
    if ids.shape[1] < lengths[-1]:
        raise ValueError(f"the text has {ids.shape[1]} tokens, fewer than the longest length {lengths[-1]}")
    return lengths, ids


def unwritten(loaded: LoadedModel, text: str) -> list[str]:
    """Return a sentence where a tokenizer has tokens for less than half of a text, as one of molecules has of prose."""
    if not getattr(loaded.tokenizer, "is_fast", False):
        return []
    text = text[:SAMPLED]
    found = loaded.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    unknown = getattr(loaded.tokenizer, "unk_token_id", None)
    spans = zip(found.input_ids, found.offset_mapping, strict=True)
    kept = {at for token, ends in spans if token != unknown for at in range(*ends) if not text[at].isspace()}
    share = len(kept) / max(1, sum(not character.isspace() for character in text))
    if share >= WRITTEN:
        return []
    return [
        f"{UNWRITTEN} {loaded.name} has tokens for {share:.0%} of its characters, and reads nothing of the others: "
        "diagnose and certify it on a text of the kind that it was trained on (--text)"
    ]


def must_read_text(loaded: LoadedModel) -> None:
    """Refuse a model that reads images or sounds.

    Raises:
        NotImplementedError: it does.
    """
    if loaded.model.main_input_name != "input_ids":
        raise NotImplementedError(
            f"{type(loaded.model).__name__} reads {loaded.model.main_input_name}, and only text can be given to it "
            "here; observe it with sharpmax.hf.sharpen(model, observer=…) instead"
        )


def layer_names(loaded: LoadedModel) -> list[str]:
    """Return what to call each attention layer of the model."""
    names = []
    for layer in attention_layers(loaded.model):
        names += [layer.name] if layer.runs == 1 else [f"{layer.name} (run {run})" for run in range(layer.runs)]
    return names


def source_code() -> str:
    """Return a text that every machine with this Python has: its argparse module, about 20,000 tokens."""
    return Path(argparse.__file__).read_text(encoding="utf-8")


def checked_lengths(loaded: LoadedModel, lengths: Sequence[int]) -> list[int]:
    """Return the lengths in rising order, or say which one the model cannot hold."""
    if not lengths or min(lengths) < 2:
        raise ValueError(f"expected lengths of 2 or more, got {list(lengths)}")
    if max(lengths) > loaded.context:
        raise ValueError(f"{loaded.name} has positions for {loaded.context} tokens, got a length of {max(lengths)}")
    return sorted(set(lengths))


def _last_rows(length: int, rows: int) -> torch.Tensor:
    """Return rows (from 0) that see about `length` keys, at most TOLERANCE fewer."""
    first = max(1, round(length * (1 - TOLERANCE)))
    return torch.linspace(first - 1, length - 1, min(rows, length - first + 1)).round().long()


def _nearest(reached: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
    """Return the length that each row is of: the smallest one not below what it reached."""
    sizes = np.asarray(lengths)
    return np.asarray(sizes[np.searchsorted(sizes, reached)])
