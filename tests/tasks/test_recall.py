import pytest
import torch

from sharpmax.tasks.recall import MARK, SYMBOLS, VALUES, Recall

TASK = Recall()


def drawn(batch=16, sizes=(20, 20), seed=0):
    return TASK.draw(batch, sizes, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("sizes", [(20, 20), (4, 20)])
def test_every_question_has_its_answer_among_the_pairs(sizes):
    found = drawn(sizes=sizes)
    assert found.tokens.shape == (16, TASK.length_of(20))
    for tokens, answers in zip(found.tokens.tolist(), found.answers.tolist(), strict=True):
        end = tokens.index(MARK)
        assert sizes[0] <= end / 4 <= sizes[1]
        stored = {tuple(tokens[i : i + 2]): tokens[i + 2 : i + 4] for i in range(0, end, 4)}
        assert len(stored) == end / 4  # no key twice
        asked = [tuple(tokens[i : i + 2]) for i in range(end + 1, end + 17, 4)]
        assert len(set(asked)) == TASK.questions
        assert [stored[key] for key in asked] == answers


def test_keys_and_values_have_symbols_of_their_own():
    tokens = drawn(sizes=(SYMBOLS, SYMBOLS)).tokens[:, : 4 * SYMBOLS].unflatten(1, (-1, 4))
    assert tokens[..., :2].max() < SYMBOLS <= tokens[..., 2:].min()
    assert tokens.max() < SYMBOLS + VALUES < TASK.vocabulary


def test_a_question_is_right_if_both_tokens_are():
    found = drawn(batch=1)
    predicted = found.answers.clone()
    predicted[0, 1, 0] += 1
    predicted[0, 2] += 1
    assert found.right(predicted).tolist() == [2]


@pytest.mark.parametrize("pairs", [TASK.questions - 1, SYMBOLS**2 + 1])
def test_sizes_that_cannot_be_drawn_are_refused(pairs):
    with pytest.raises(ValueError, match=f"expected from 4 to 16384 pairs, got {pairs}"):
        drawn(sizes=(pairs, pairs))
