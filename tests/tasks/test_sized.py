"""Every task: its checker against an independent solver in plain Python, its sizes, its chance, its padding."""

from collections import Counter

import pytest
import torch

from sharpmax.tasks import copying, flip_flop, numbers, recall, share
from sharpmax.tasks.catalogue import TASKS
from sharpmax.tasks.sized import joined


def drawn(task, sizes, batch=12, seed=0):
    return task.draw(batch, sizes, generator=torch.Generator().manual_seed(seed))


def recalled(tokens):
    """Solve recall and needle: look every asked key up."""
    end = tokens.index(recall.MARK)
    stored = {}
    for i in range(0, end, 4):
        stored.setdefault(tuple(tokens[i : i + 2]), tokens[i + 2 : i + 4])
    return [stored[tuple(tokens[i : i + 2])] for i in range(end + 1, end + 17, 4)], end // 4


def as_numbers(digits):
    return numbers.BASE * digits[..., 0] + digits[..., 1] - numbers.BASE


def number_list(tokens):
    end = tokens.index(numbers.LARGEST)
    digits = [tokens[i : i + 2] for i in range(0, end, 2)]
    assert len({tuple(d) for d in digits}) == len(digits)
    return sorted(digits), end


def largest_two(tokens):
    ranked, end = number_list(tokens)
    return [ranked[-1], ranked[-2]], end // 2


def continued(tokens):
    ranked, end = number_list(tokens)
    first = ranked.index(tokens[end + 1 : end + 3])
    return ranked[first + 1 : first + 9], end // 2


def copied(tokens):
    end = tokens.index(copying.MARK)
    run_up = tokens[end + 1 : end + 4]
    place = next(i for i in range(end) if tokens[i : i + 3] == run_up)
    return [[token] for token in tokens[place + 3 : place + 11]], end


def remembered(tokens):
    memory, found = None, {}
    pairs = [tuple(tokens[i : i + 2]) for i in range(0, len(tokens), 2)]
    for place, (kind, symbol) in enumerate(pairs):
        memory = symbol if kind == flip_flop.WRITE else memory
        if kind == flip_flop.READ:
            found[2 * place] = memory
    return found, sum(kind != flip_flop.END for kind, _ in pairs)


def counted(tokens):
    end = tokens.index(share.MARK)
    black = Counter(tokens[:end])[share.BLACK]
    return [[share.FIRST_SHARE + 8 * black // (end + 1)]], end


SOLVERS = {
    "recall": recalled,
    "needle": recalled,
    "maximum": largest_two,
    "sort": continued,
    "copy": copied,
    "flip-flop": remembered,
    "share": counted,
}


def test_every_task_has_a_solver_here():
    assert set(SOLVERS) == set(TASKS)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("mixed", [True, False])
def test_answers_are_those_of_an_independent_solver(name, mixed):
    task, most = TASKS[name], 40
    sizes = (task.trained[0], most) if mixed else (most, most)
    batch = drawn(task, sizes)
    assert batch.tokens.shape == (12, task.length_of(most))
    assert batch.at.shape[1] == task.questions
    assert batch.tokens.min() >= 0
    assert batch.tokens.max() < task.vocabulary
    seen = set()
    for tokens, at, answers in zip(batch.tokens.tolist(), batch.at.tolist(), batch.answers.tolist(), strict=True):
        solved, size = SOLVERS[name](tokens)
        if name == "flip-flop":
            solved = [[solved[place]] for (place,) in at]
        assert answers == solved
        assert sizes[0] <= size <= sizes[1]
        seen.add(size)
    assert (len(seen) > 1) == mixed


@pytest.mark.parametrize("name", TASKS)
def test_padding_changes_nothing_that_counts(name):
    """Cut off behind the last answer, a padded sequence has the length of its own size."""
    task = TASKS[name]
    batch = drawn(task, (task.trained[0], 30))
    lengths = {task.length_of(size) for size in range(task.trained[0], 31)}
    assert {int(at.max()) + 2 for at in batch.at} <= lengths


@pytest.mark.parametrize("name", TASKS)
def test_a_seed_gives_the_same_sequences_and_another_one_others(name):
    task = TASKS[name]
    first, again, other = (drawn(task, task.trained, seed=seed).tokens for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("name", TASKS)
def test_sizes_that_cannot_be_drawn_are_refused(name):
    task = TASKS[name]
    with pytest.raises(ValueError, match=r"expected from .* got 1$"):
        drawn(task, (1, 1))
    with pytest.raises(ValueError, match="got 20 to 10"):
        drawn(task, (20, 10))


@pytest.mark.parametrize("name", TASKS)
def test_it_is_asked_at_a_hundred_times_the_trained_size_or_more(name):
    task = TASKS[name]
    assert task.asked[0] == task.trained[1]
    assert task.asked[-1] >= 100 * task.trained[1]
    assert task.sharpness.split(":")[0] in ("helps", "hurts")


@pytest.mark.parametrize("name", TASKS)
def test_no_fixed_guess_beats_chance(name):
    """The commonest answer among many is not commoner than chance allows, by five standard errors."""
    task = TASKS[name]
    answers = drawn(task, (task.trained[1],) * 2, batch=2000).answers
    commonest = max(max(Counter(map(tuple, column)).values()) for column in answers.transpose(0, 1).tolist())
    expected = 2000 * task.chance(task.trained[1])
    assert commonest <= expected + 5 * max(1.0, expected) ** 0.5


@pytest.mark.parametrize("size", [24, 1024])
def test_chance_knows_that_the_next_number_may_be_guessed_from_the_one_before(size):
    """By five standard errors, as if the numbers of a list were drawn one by one; in truth they err less."""
    guessed = {}
    for name in ("maximum", "sort"):
        batch = drawn(TASKS[name], (size, size), batch=1500)
        answers = as_numbers(batch.answers)
        if name == "maximum":
            right = (answers[:, 1] == answers[:, 0] - 1).double() / 2  # of two questions
        else:
            shown = batch.tokens.gather(1, batch.at[:, 0] + torch.tensor([-1, 0]))
            before = torch.cat((as_numbers(shown)[:, None], answers[:, :-1]), dim=1)
            right = (answers == before + 1).double().mean(1)
        guessed[name] = float(right.mean())
        chance = TASKS[name].chance(size)
        assert abs(guessed[name] - chance) < 5 * (chance / len(answers)) ** 0.5
    assert guessed["sort"] > 0.005


def test_needles_have_near_duplicates_alone():
    batch = drawn(TASKS["needle"], (30, 30))
    for tokens in batch.tokens.tolist():
        asked = [tokens[i : i + 2] for i in range(121, 137, 4)]
        for i in range(0, 120, 4):
            assert max(sum(map(int.__eq__, tokens[i : i + 2], key)) for key in asked) >= 1
            assert sum(tokens[i : i + 2] == key for key in asked) <= 1
        assert all(sum(tokens[i : i + 2] == key for i in range(0, 120, 4)) == 1 for key in asked)


def test_parts_are_joined_and_padded_by_the_last_token():
    stored, rest = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[7, 8], [9, 0]])
    assert joined(stored, torch.tensor([3, 1]), rest).tolist() == [[1, 2, 3, 7, 8], [4, 9, 0, 0, 0]]
