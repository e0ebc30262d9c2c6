"""The prompts: one right answer each, the same for the same seed, and sizes that mean what they say."""

import re

import pytest

from sharpmax.tasks.prompts import TASKS, WORDINGS, draw, parts


@pytest.mark.parametrize("task", TASKS)
def test_a_prompt_depends_on_its_seed_and_index_alone(task):
    size = {"cwe": 20, "fwe": 100}.get(task, 9)  # which have no smaller ones
    assert draw(task, size, seed=1, index=4) == draw(task, size, seed=1, index=4)
    assert draw(task, size, seed=1, index=4) != draw(task, size, seed=1, index=5)
    assert draw(task, size, seed=1, index=4) != draw(task, size, seed=2, index=4)


@pytest.mark.parametrize("task", [f"lookup:{wording}" for wording in WORDINGS])
@pytest.mark.parametrize("size", [1, 32, 256])
def test_a_lookup_asks_for_exactly_one_of_its_lines(task, size):
    prompt = draw(task, size, seed=0)
    *lines, question = prompt.text.split("\n")
    assert len(lines) == size
    assert len([line for line in lines if line.startswith(question + prompt.answer)]) == 1
    assert re.fullmatch(r" \d{4}", prompt.answer)


def test_a_needle_is_said_once():
    prompt = draw("needle", 40, seed=0)
    assert prompt.text.count(prompt.answer) == 1
    assert prompt.text.count("The code of the") == 2


@pytest.mark.parametrize("size", [2, 5, 64])
def test_a_copy_continues_its_own_list(size):
    for index in range(20):
        prompt = draw("copy", size, seed=0, index=index)
        listed, again = prompt.text.split(".\n")
        assert len(listed.split()) == size
        assert again + prompt.answer in listed


def test_the_maximum_is_the_maximum():
    prompt = draw("maximum", 50, seed=0)
    numbers = [int(number) for number in re.findall(r"\d+", prompt.text)]
    assert len(set(numbers)) == 50
    assert prompt.answer == f" {max(numbers)}"


@pytest.mark.parametrize(
    ("task", "size", "said"),
    [
        ("sorting", 4, "expected a"),
        ("needle:code", 4, "expected a"),
        ("lookup:rhyme", 4, "expected a"),
        ("maximum", 901, "expected a"),
        ("lookup", 0, "size"),
        ("niah_multikey_2", 10**6, "expected a size from 1 to 265922, got 1000000"),  # more keys than words make
    ],
)
def test_what_does_not_exist_is_refused(task, size, said):
    with pytest.raises(ValueError, match=said):
        draw(task, size, seed=0)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"size": 2.5}, "expected size to be a whole number from 0 up, got 2.5"),
        ({"size": "5"}, "expected size to be a whole number from 0 up, got '5'"),
        ({"seed": -1}, "expected seed to be a whole number from 0 up, got -1"),
        ({"index": -1}, "expected index to be a whole number from 0 up, got -1"),
    ],
)
def test_a_number_that_is_none_is_named(numbers, said):
    for task in ("lookup", "recall"):
        with pytest.raises(ValueError, match=said):
            parts(task, **{"size": 4, "seed": 0, "index": 0, **numbers})
