"""What is trained on, drawn afresh for every step, and what is asked: the published questions.

Every algorithm and training length is as likely as every other, as in the published training set. Rows are padded at
the end to one of two widths, so that two compiled layers serve all steps: most algorithms need half of what those that
state two lists and answer with a third need.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sharpmax.experiments.compare.train import Recipe
from sharpmax.extras import extra
from sharpmax.tasks.clrs_text.examples import VALIDATION_SEEDS
from sharpmax.tasks.clrs_text.inputs import draw, published, require_supported
from sharpmax.tasks.clrs_text.protocol import asked_lengths, trained_lengths
from sharpmax.tasks.clrs_text.sequences import Sequences, most_answer_tokens, most_tokens, sequences
from sharpmax.tasks.clrs_text.tokens import ENDS
from sharpmax.tasks.sized import Batch

with extra("torch"):
    import torch
    from torch import Tensor
    from torch.nn import functional

DRAWN_AT_ONCE = 32  # steps whose data are drawn together
NARROW = 72  # tokens; algorithms whose longest training row fits share this width
MULTIPLE = 8  # of every other width: fast kernels want eights
PADDING = ENDS[1]


@dataclass(frozen=True)
class FreshSequences:
    """Training data: new sequences for every seed and step, of the seed and step alone."""

    algorithms: tuple[str, ...]

    def __post_init__(self) -> None:
        for algorithm in self.algorithms:
            require_supported(algorithm)

    def shares(self, batch: int) -> dict[str, int]:
        """Return how many sequences of each algorithm a step has: by its number of training lengths, at least one."""
        lengths = {algorithm: len(trained_lengths(algorithm)) for algorithm in self.algorithms}
        each = batch / sum(lengths.values())
        return {algorithm: max(1, round(each * count)) for algorithm, count in lengths.items()}

    @property
    def groups(self) -> dict[int, list[str]]:
        """Return the widths, and the algorithms whose rows are padded to each."""
        found: dict[int, list[str]] = {}
        for algorithm in self.algorithms:
            longest = most_tokens(algorithm, trained_lengths(algorithm)[-1])
            found.setdefault(NARROW if longest <= NARROW else longest + -longest % MULTIPLE, []).append(algorithm)
        widest = max(found)  # those that are not narrow share one width too
        wide = [algorithm for width, names in found.items() if width > NARROW for algorithm in names]
        return ({NARROW: found[NARROW]} if NARROW in found else {}) | ({widest: wide} if wide else {})

    def batches(
        self, recipe: Recipe, seeds: list[int], device: torch.device, first: int
    ) -> Iterator[tuple[int, tuple[Batch, ...]]]:
        """Yield every step from `first` on, and a batch of each width: tokens (seeds, sequences, width)."""
        shares = self.shares(recipe.batch)
        for start in range(first - first % DRAWN_AT_ONCE, recipe.steps, DRAWN_AT_ONCE):
            generators = [torch.Generator(device=device).manual_seed(_mixed(seed, start)) for seed in seeds]
            drawn = [self._batch(names, width, shares, generators) for width, names in self.groups.items()]
            for step in range(max(start, first), min(start + DRAWN_AT_ONCE, recipe.steps)):
                yield step, tuple(_of_step(whole, step - start) for whole in drawn)

    def _batch(
        self, names: Sequence[str], width: int, shares: dict[str, int], generators: Sequence["torch.Generator"]
    ) -> Batch:
        """Return the sequences of `DRAWN_AT_ONCE` steps: tokens (seeds, steps, sequences, width)."""
        drawn = [self._drawn(name, width, shares[name], generators) for name in names]
        rows = Sequences(*(torch.cat(parts, dim=2) for parts in zip(*drawn, strict=True)))
        most = max(most_answer_tokens(name, trained_lengths(name)[-1]) for name in names)
        at, inside = places_of(rows, most)
        weights = inside / inside.sum(-1, keepdim=True) / sum(shares.values())
        return Batch(rows.tokens, at.unsqueeze(-2), weights.unsqueeze(-2))

    def _drawn(self, name: str, width: int, share: int, generators: Sequence["torch.Generator"]) -> Sequences:
        """Return `share` sequences of each step and seed, (seeds, steps, share, …)."""
        trained = trained_lengths(name)
        lengths, inputs = [], []
        for generator in generators:
            choices = torch.tensor(trained, device=generator.device)
            picked = torch.randint(len(trained), (DRAWN_AT_ONCE * share,), generator=generator, device=generator.device)
            lengths.append(choices[picked])
            inputs.append(draw(name, lengths[-1], trained[-1], generator=generator))
        # All seeds go through the algorithm together.
        together = {field: torch.cat([each[field] for each in inputs]) for field in inputs[0]}
        made = sequences(name, together, torch.cat(lengths))
        rows = padded(made.tokens, width)
        shape = (len(generators), DRAWN_AT_ONCE, share)
        return Sequences(rows.view(*shape, width), made.starts.view(shape), made.ends.view(shape))


class Questions(NamedTuple):
    """The published questions of one algorithm, by length, validation seed and sample, in that order."""

    rows: Sequences
    lengths: list[int]
    """Of every question."""
    firsts: list[bool]
    """Whether a question is the first of its length and validation seed: those are also answered by decoding."""


def questions(algorithm: str, samples: int, only: Sequence[int] | None = None) -> Questions:
    """Return the first `samples` questions of each validation seed at every published length, or at some of them."""
    found, lengths, firsts = [], [], []
    for length in asked_lengths(algorithm):
        if only is not None and length not in only:
            continue
        for seed in VALIDATION_SEEDS:
            inputs = published(algorithm, length, samples, seed)
            found.append(sequences(algorithm, inputs, torch.full((samples,), length)))
            lengths += [length] * samples
            firsts += [True, *[False] * (samples - 1)]
    width = max(int(each.ends.max()) for each in found)
    tokens = torch.cat([padded(each.tokens, width) for each in found])
    starts, ends = (torch.cat(parts) for parts in list(zip(*found, strict=True))[1:])
    return Questions(Sequences(tokens, starts, ends), lengths, firsts)


def places_of(rows: Sequences, most: int) -> tuple[Tensor, Tensor]:
    """Return where up to `most` answer tokens are predicted, (…, most), and which of those places an answer has."""
    at = rows.starts[..., None] - 1 + torch.arange(most, device=rows.starts.device)
    inside = at < rows.ends[..., None] - 1
    return torch.where(inside, at, rows.starts[..., None] - 1), inside


def padded(tokens: Tensor, width: int) -> Tensor:
    """Return the tokens in rows of that width; what is cut off is padding."""
    return functional.pad(tokens[:, :width], (0, max(0, width - tokens.shape[1])), value=PADDING)


def _mixed(seed: int, start: int) -> int:
    """Return 32 bits that differ with both: a generator on a CPU takes no more of them."""
    return int(np.random.SeedSequence((seed, start)).generate_state(1)[0])


def _of_step(whole: Batch, step: int) -> Batch:
    return Batch(*(part[:, step] for part in whole if part is not None))
