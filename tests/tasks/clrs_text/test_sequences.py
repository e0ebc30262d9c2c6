"""Tokens, inputs and answers are the published text, character by character; fresh draws are of that distribution."""

from itertools import islice

import pytest
import torch

from sharpmax.tasks.clrs_text.examples import stream
from sharpmax.tasks.clrs_text.inputs import SUPPORTED, draw, published
from sharpmax.tasks.clrs_text.sequences import most_answer_tokens, most_tokens, sequences
from sharpmax.tasks.clrs_text.tokens import ENDS, VOCABULARY, decode, encode, mistakes

SAMPLES = 12


def rows(algorithm, length, samples=SAMPLES, seed=14):
    inputs = published(algorithm, length, samples, seed)
    made = sequences(algorithm, inputs, torch.full((samples,), length))
    return inputs, [
        (row[:start], row[start:end])
        for row, start, end in zip(made.tokens.tolist(), made.starts.tolist(), made.ends.tolist(), strict=True)
    ]


def has_ties(algorithm, inputs, sample):
    """Tell whether dm-clrs sorts ties here: by NumPy's unstable sort, whose order depends on the processor."""
    sorted_by = {"activity_selector": "f", "task_scheduling": "w"}.get(algorithm)
    if sorted_by is None:
        return False
    values = inputs[sorted_by][sample]
    return len(values.unique()) < len(values)


@pytest.mark.parametrize("algorithm", SUPPORTED)
def test_the_text_is_the_published_one(algorithm):
    compared = 0
    for length in (4, 5, 11, 25):
        inputs, found = rows(algorithm, length)
        for sample, example in enumerate(islice(stream(algorithm, length, seed=14), SAMPLES)):
            question, answer = found[sample]
            assert decode(question) == example.question
            assert encode(example.question) == question
            if not has_ties(algorithm, inputs, sample):
                assert decode(answer) == example.answer
                assert encode(example.answer) == answer
                compared += 1
    assert compared >= 3 * SAMPLES


@pytest.mark.parametrize("algorithm", SUPPORTED)
def test_a_batch_of_many_lengths_is_what_each_is_alone(algorithm):
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([4, 31, 10, 5, 23, 12])
    inputs = draw(algorithm, lengths, 31, generator=generator)
    together = sequences(algorithm, inputs, lengths)
    for row, length in enumerate(lengths.tolist()):
        end = int(together.ends[row])
        assert end <= most_tokens(algorithm, length)
        assert end - int(together.starts[row]) <= most_answer_tokens(algorithm, length)
        assert int(together.tokens[row].max()) < VOCABULARY
        alone = sequences(algorithm, {n: t[row : row + 1] for n, t in inputs.items()}, lengths[row : row + 1])
        assert together.tokens[row, :end].tolist() == alone.tokens[0, : int(alone.ends)].tolist()
        # What is read back from the text is what was written, so that its length is the one that was asked for.
        text = decode(together.tokens[row, :end].tolist())
        assert encode(text) == together.tokens[row, :end].tolist()
        assert text.split("[")[1].split("]")[0].count(" ") + 1 == length


@pytest.mark.parametrize("algorithm", SUPPORTED)
def test_fresh_inputs_are_spread_as_the_published_ones(algorithm):
    samples, length = 400, 12
    fresh = draw(algorithm, torch.full((samples,), length), length, generator=torch.Generator().manual_seed(1))
    old = published(algorithm, length, samples, 3)
    for name, values in old.items():
        mine = fresh[name][:, : values.shape[1]].double()
        # Means of thousands of draws: four standard errors of the difference of two such means.
        apart = 4 * (2 * float(values.double().var()) / values.numel()) ** 0.5
        assert float(mine.mean() - values.double().mean()) == pytest.approx(0.0, abs=apart)
        assert float(mine.min()) == pytest.approx(float(values.min()), abs=15)
        assert float(mine.max()) == pytest.approx(float(values.max()), abs=15)


def test_ties_are_decided_as_the_published_loops_do():
    key = torch.tensor([[500, 500, 100, 100, 500]])
    five = torch.tensor([5])
    assert decode(sequences("minimum", {"key": key}, five).tokens[0].tolist()).split("\n")[3] == "2"
    # Hoare's exchanges, by hand: pivot 500, all at most it; rank 2 is then among the first four, …
    reference = published_quickselect([500, 500, 100, 100, 500])
    assert decode(sequences("quickselect", {"key": key}, five).tokens[0].tolist()).split("\n")[3] == str(reference)


def published_quickselect(values):
    """The textbook's loops, one comparison after the other."""
    items, low, high, rank = [(value, i) for i, value in enumerate(values)], 0, len(values) - 1, len(values) // 2
    while True:
        i = low - 1
        for j in range(low, high):
            if items[j][0] <= items[high][0]:
                i += 1
                items[i], items[j] = items[j], items[i]
        items[i + 1], items[high] = items[high], items[i + 1]
        left = i + 1 - low
        if rank == left:
            return items[i + 1][1]
        if rank < left:
            high = i
        else:
            low, rank = i + 2, rank - left - 1


def test_quickselect_with_many_ties_is_the_loops():
    key = torch.randint(6, (200, 17), generator=torch.Generator().manual_seed(2))
    made = sequences("quickselect", {"key": key}, torch.full((200,), 17))
    for row in range(200):
        answer = decode(made.tokens[row, made.starts[row] : made.ends[row]].tolist())
        assert answer == f"{published_quickselect(key[row].tolist())}\n\n"


@pytest.mark.parametrize(
    ("said", "right", "letters"),
    [
        ("[0.1 0.2]\n\n", "[0.1 0.2]\n\n", "...."),
        ("[0.1 0.3]\n\n", "[0.1 0.2]\n\n", "..i."),
        ("[0.1]\n\n", "[0.1 0.2", "..e"),
        ("[0.1 0.2 0.3", "[0.1 0.2]\n\n", "...l"),
        ("[0.1,", "[0.1]\n\n", "..l"),
        ("0.1 0.2", "[0.2", "f."),
        ("12\n\n", "1\n\n\n\n", ".i."),  # a digit more is another number
        ("1\n\n", "12", ".i"),
        ("3, 4\n\n", "3, 5\n\n", "..i."),
        ("3\n\n", "3,", ".e"),
        ("[1", "1[", "ff"),
    ],
)
def test_mistakes_are_told_apart(said, right, letters):
    assert mistakes(encode(said), encode(right)) == letters


@pytest.mark.parametrize("number", ["0.5555", "0.9999", "-0.0001", "1.0"])
def test_a_number_of_other_than_three_decimals_is_refused(number):
    with pytest.raises(ValueError, match="expected text of numbers"):
        encode(f"minimum:\nkey: [{number}]\nmin:\n2\n\n")


def test_what_is_not_of_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match="got 'bogosort"):
        encode("bogosort:\n")
    with pytest.raises(ValueError, match="expected an algorithm among activity_selector"):
        draw("bfs", torch.tensor([4]), 4, generator=torch.Generator())
    assert decode([*ENDS]) == "]\n\n\n\n"
