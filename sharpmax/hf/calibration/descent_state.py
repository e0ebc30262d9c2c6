"""What a descent carries from step to step, and one file that keeps it: a killed fit continues, to the same end."""

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sharpmax.extras import extra
from sharpmax.files import atomic

with extra("hf"):
    from safetensors import safe_open
    from safetensors.torch import save

FOLLOW = 0.05
"""How far a price moves in a round of all windows, in log, at most: faster than the heads can follow, it overshoots."""
NEWEST = 0.3
"""The share of the newest cost in the mean that a price looks at."""


SHARE_OF_TIME = 20
"""How many times as long as keeping a state takes passes before the next one is kept: a twentieth of the time."""
SECONDS_UNKEPT = 30.0
"""Seconds after which a state is kept at the end of the step, however long keeping takes."""


class Course(NamedTuple):
    """The answers' loss, the cost of text and its price, at every step."""

    answers: list[float]
    cost: list[float]
    price: list[float]


@dataclass
class Price:
    """The price of one kind of text in windows of one length; it follows what is allowed, or is fixed if nothing is.

    `rounds` is how many rounds of all windows pass before its turn comes again: it then moves as far as in all of them.
    """

    value: float
    allowed: float | None
    rounds: int = 1
    excess: float = 0.0
    """The mean of the latest costs over what is allowed, as shares of it, each between -1 and 1."""

    def follow(self, paid: float) -> None:
        """Rise while the cost is above what is allowed, fall while it is below."""
        if self.allowed is None:
            return
        # Bounded before the mean is taken: the first steps cost twenty times what is allowed, and would be remembered
        # long after they are mended.
        newest = min(1.0, max(-1.0, paid / self.allowed - 1))
        self.excess += NEWEST * (newest - self.excess)
        self.value *= math.exp(self.rounds * FOLLOW * self.excess)


def store(
    file: Path, of: str, step: int, trained: Sequence[Tensor], adam: torch.optim.Adam, prices: Sequence[Price],
    courses: Any,
) -> None:  # fmt: skip
    """Put the state after `step` steps into one safetensors file, whole or not at all; `of` says of which fit."""
    tensors = {}
    for index, tensor in enumerate(trained):
        moments = adam.state[tensor]
        for name, value in (("value", tensor), ("mean", moments["exp_avg"]), ("square", moments["exp_avg_sq"])):
            tensors[f"{name}-{index}"] = value.detach().contiguous()
    numbers = {
        "of": of,
        "step": step,
        "prices": [[p.value, p.excess] for p in prices],
        "courses": [list(c) for c in courses],
    }
    atomic.write_bytes(file, save(tensors, {"numbers": json.dumps(numbers)}))


class Keeper:
    """Keep the state of a descent in a file: at the end of a step, as often as that is cheap, and on Ctrl-C.

        with Keeper(file, of, trained, adam, prices, courses) as keeper:
            for step in range(begin, steps):
                ...                        # asks and reads, and changes nothing that is kept
                with keeper.changing():    # Adam's step, the prices, the courses
                    ...
                keeper.made(step + 1, last=...)

    Without a file it keeps nothing. A step that was interrupted is made again, from the same draws.
    """

    def __init__(self, file: Path | None, of: str, *state: Any) -> None:
        self._file, self._of, self._state = file, of, state
        self._steps = self._stored = 0
        self._whole, self._took, self._at = True, 0.0, time.monotonic()

    def __enter__(self) -> "Keeper":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Of a step that was half made there is no state to keep; the file then holds an earlier one.
        if kind is KeyboardInterrupt and self._whole and self._steps > self._stored:
            self._store()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Mark the block that changes the state: it is whole again only if the block ends."""
        self._whole = False
        yield
        self._whole = True

    def made(self, steps: int, *, last: bool) -> None:
        """Note that so many steps are made, and keep them if it is time to."""
        self._steps = steps
        if last or time.monotonic() - self._at >= min(SHARE_OF_TIME * self._took, SECONDS_UNKEPT):
            self._store()

    def _store(self) -> None:
        if self._file is not None:
            began = time.monotonic()
            store(self._file, self._of, self._steps, *self._state)
            self._at = time.monotonic()
            self._took, self._stored = self._at - began, self._steps


def restore(
    file: Path, of: str, trained: Sequence[Tensor], adam: torch.optim.Adam, prices: Sequence[Price], courses: Any
) -> int:
    """Read it back into all of these; returns the number of steps that were made.

    A file of an earlier version does not say of which fit it is.

    Raises:
        ValueError: the file is of another fit.
    """
    with safe_open(file, "pt", device=str(trained[0].device)) as content:
        numbers = json.loads(content.metadata()["numbers"])
        same = numbers.get("of", of) == of and len(numbers["prices"]) == len(prices)
        if not same or len(content.keys()) != 3 * len(trained):
            raise ValueError(f"{file} keeps another fit than this one; remove it or choose another folder")
        step = int(numbers["step"])
        for index, tensor in enumerate(trained):
            tensor.data.copy_(content.get_tensor(f"value-{index}"))
            moments = {"exp_avg": f"mean-{index}", "exp_avg_sq": f"square-{index}"}
            adam.state[tensor] = {"step": torch.tensor(float(step))}
            adam.state[tensor] |= {name: content.get_tensor(key) for name, key in moments.items()}
    for price, (value, excess) in zip(prices, numbers["prices"], strict=True):
        price.value, price.excess = value, excess
    for course, lists in zip(courses, numbers["courses"], strict=True):
        for kept, read in zip(course, lists, strict=True):
            kept[:] = read
    return step
