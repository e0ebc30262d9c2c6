"""What is trained on and what is asked, kept apart, and kept on disk: shards of text with their checksums.

The test set is settled first, from the published validation seeds. A training example whose question is in the test set
is drawn again: small inputs repeat (there are few graphs of four nodes), whatever the seed. A test question is asked
once: `segments_intersect` has two segments whatever the length, so it says nothing about sizes, and stands at the
shortest alone. Every shard draws from seeds of its own, so shards are made side by side, and a run that was killed
makes only those that are missing.
"""

import gzip
import hashlib
import json
import random
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from sharpmax import defaults
from sharpmax.files import atomic
from sharpmax.files.wheels import cache_folder
from sharpmax.tasks.clrs_text.examples import (
    ALGORITHMS,
    VALIDATION_SEEDS,
    Example,
    require_known,
    require_samples,
    stream,
    validation,
)

SHARD = 4096
GIVE_UP = 1000
"""Draws in a row that are all in the test set: then no training example of that algorithm and length is left."""
TOO_LONG = 20
"""Draws in a row that are all too long: then that algorithm is not trained on at that length."""


@dataclass(frozen=True)
class Plan:
    """What a corpus holds.

    Attributes:
        train_lengths, test_lengths: lengths of the inputs; training draws one, and an algorithm, evenly.
        train_examples, train_seed: how many, and from which draws.
        test_samples: of each algorithm, length and validation seed, at most 125.
        most_characters: a longer example is left out, and counted. No tokenizer makes more tokens than characters.
        hints: whether the answer shows the algorithm's trace.
    """

    algorithms: tuple[str, ...] = ALGORITHMS
    train_lengths: tuple[int, ...] = defaults.TRAIN_LENGTHS
    test_lengths: tuple[int, ...] = (*defaults.TEST_LENGTHS, 64)
    train_examples: int = defaults.TRAIN_EXAMPLES
    train_seed: int = 1000
    test_samples: int = defaults.TEST_SAMPLES
    most_characters: int = 8192
    hints: bool = False

    def __post_init__(self) -> None:
        for algorithm in self.algorithms:
            for length in (*self.train_lengths, *self.test_lengths):
                require_known(algorithm, length)
        require_samples(self.test_samples)
        if self.train_examples < 1:
            raise ValueError(f"expected at least 1 training example, got {self.train_examples}")
        shards = -(-self.train_examples // SHARD)
        if set(range(self.train_seed, self.train_seed + shards)) & set(VALIDATION_SEEDS):
            raise ValueError(
                f"expected training examples from seeds that are none of {VALIDATION_SEEDS}, got "
                f"{self.train_examples} from seed {self.train_seed}, which makes shards of {shards} seeds on from there"
            )


@dataclass(frozen=True)
class Corpus:
    """The examples of a plan, with what was left out: `left_out[split]` counts examples longer than allowed."""

    plan: Plan
    train: list[Example]
    test: list[Example]
    left_out: dict[str, int]
    sha256: dict[str, str]


def corpus(plan: Plan, *, processes: int = 1, report: Callable[[int, int], None] | None = None) -> Corpus:
    """Return the plan's examples, from disk where they are, made and kept where they are not.

    `report(made, of)` is called as shards are finished.

    Raises:
        ValueError: nothing to train on or to ask that is short enough; or a training example that is also a test
            example, which the making rules out.
    """
    folder = corpus_folder(plan)
    tests = {folder / f"test-{name}.jsonl.gz": partial(_test_examples, plan, name) for name in plan.algorithms}
    made = _kept(tests, processes, report)
    test: dict[str, Example] = {}
    for example in (example for examples, _, _ in made for example in examples):
        test.setdefault(example.question, example)
    if not test:
        raise ValueError(f"every question has more than {plan.most_characters:,} characters; ask at shorter lengths")
    asked = frozenset(test)
    shards = range(-(-plan.train_examples // SHARD))
    counts = {i: min(SHARD, plan.train_examples - i * SHARD) for i in shards}
    trains = {
        folder / f"train-{i:03}.jsonl.gz": partial(training, plan, asked, seed=plan.train_seed + i, count=count)
        for i, count in counts.items()
    }
    drawn = _kept(trains, processes, report)
    train = [example for examples, _, _ in drawn for example in examples]
    if shared := sum(example.question in asked for example in train):
        raise ValueError(f"{shared} training examples of {folder} are test examples too; delete that folder")
    return Corpus(
        plan,
        train,
        list(test.values()),
        {"test": sum(left for _, left, _ in made), "train": sum(left for _, left, _ in drawn)},
        {"test": _together(made), "train": _together(drawn)},
    )


def held_out(plan: Plan, *, examples: int = 512) -> list[Example]:
    """Return examples like the training's that are in neither training nor test, to make choices on; kept on disk."""
    file = corpus_folder(plan) / f"held-out-{examples}.jsonl.gz"

    def make() -> tuple[list[Example], int]:
        whole = corpus(plan)
        known = frozenset(example.question for example in (*whole.train, *whole.test))
        return training(plan, known, seed=plan.train_seed - (-plan.train_examples // SHARD), count=examples)

    ((kept, _, _),) = _kept({file: make}, 1, None)
    return kept


def corpus_folder(plan: Plan) -> Path:
    """Return where the plan's shards are, or would be, kept."""
    name = hashlib.sha256(json.dumps(asdict(plan), sort_keys=True).encode()).hexdigest()[:12]
    return cache_folder() / "clrs-text" / name


Shard = tuple[list[Example], int, str]
"""Examples, how many were left out, and the checksum of the text."""
Make = Callable[[], tuple[list[Example], int]]
"""Makes the examples of a shard, and says how many it left out."""


def _kept(makers: Mapping[Path, Make], processes: int, report: Callable[[int, int], None] | None) -> list[Shard]:
    """Return the shards in the files, those that are missing made first, side by side."""
    missing = [(file, make) for file, make in makers.items() if not file.exists()]
    if processes > 1 and len(missing) > 1:
        with ProcessPoolExecutor(min(processes, len(missing)), mp_context=get_context("spawn")) as pool:
            for count, running in enumerate([pool.submit(_write, *each) for each in missing], start=1):
                running.result()
                if report:
                    report(count, len(missing))
    else:
        for count, each in enumerate(missing, start=1):
            _write(*each)
            if report:
                report(count, len(missing))
    return [_read(file) for file in makers]


def _test_examples(plan: Plan, algorithm: str) -> tuple[list[Example], int]:
    kept, left_out = [], 0
    for length in plan.test_lengths:
        first = next(stream(algorithm, length, seed=VALIDATION_SEEDS[0], hints=plan.hints))
        if _characters(first) > 1.25 * plan.most_characters:  # hopeless, and the longest take seconds each to make
            left_out += plan.test_samples * len(VALIDATION_SEEDS)
            continue
        examples = validation(algorithm, length, samples=plan.test_samples, hints=plan.hints)
        short = [example for example in examples if _characters(example) <= plan.most_characters]
        kept += short
        left_out += len(examples) - len(short)
    return kept, left_out


def training(plan: Plan, asked: frozenset[str], *, seed: int, count: int) -> tuple[list[Example], int]:
    """Draw training examples, none of whose questions is in `asked`; returns them and how many were too long."""
    draws = random.Random(seed)
    pairs = [(algorithm, length) for algorithm in plan.algorithms for length in plan.train_lengths]
    streams = {pair: stream(*pair, seed=seed, hints=plan.hints) for pair in pairs}
    examples: list[Example] = []
    left_out = 0
    too_long = Counter[tuple[str, int]]()
    while len(examples) < count:
        if not pairs:
            raise ValueError(
                "every training example that was drawn is in the test set, or has more than "
                f"{plan.most_characters:,} characters; train on inputs of other lengths"
            )
        pair = draws.choice(pairs)
        found = next((e for _, e in zip(range(GIVE_UP), streams[pair], strict=False) if e.question not in asked), None)
        if found is None:
            pairs.remove(pair)
        elif _characters(found) > plan.most_characters:
            left_out += 1
            too_long[pair] += 1
            if too_long[pair] == TOO_LONG:
                pairs.remove(pair)
        else:
            too_long[pair] = 0
            examples.append(found)
    return examples, left_out


def _characters(example: Example) -> int:
    return len(example.question) + len(example.answer)


def _write(file: Path, make: Make) -> None:
    examples, left_out = make()
    lines = "".join(json.dumps(list(asdict(example).values())) + "\n" for example in examples)
    head = json.dumps({"left_out": left_out, "sha256": hashlib.sha256(lines.encode()).hexdigest()})
    atomic.write_bytes(file, gzip.compress(f"{head}\n{lines}".encode(), mtime=0))


def _read(file: Path) -> Shard:
    """Return the shard in the file; its checksum is of the text, not of the zip."""
    try:
        head, _, lines = gzip.decompress(file.read_bytes()).decode().partition("\n")
        said: dict[str, Any] = json.loads(head)
        whole = hashlib.sha256(lines.encode()).hexdigest() == said["sha256"]
    except (EOFError, gzip.BadGzipFile, zlib.error, ValueError, TypeError, KeyError):
        whole = False
    if not whole:
        raise ValueError(f"{file} is not what was written; delete it to make it again")
    return [Example(*json.loads(line)) for line in lines.splitlines()], said["left_out"], said["sha256"]


def _together(shards: Sequence[Shard]) -> str:
    return hashlib.sha256("".join(digest for _, _, digest in shards).encode()).hexdigest()
