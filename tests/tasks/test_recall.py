import pytest
import torch

from sharpmax.tasks.recall import MARK, QUESTIONS, SYMBOLS, VALUES, VOCABULARY, draw, length_of


def drawn(batch=16, pairs=20, seed=0):
    return draw(batch, pairs, generator=torch.Generator().manual_seed(seed))


def test_every_question_has_its_answer_among_the_pairs():
    found = drawn()
    assert found.tokens.shape == (16, length_of(20))
    assert (found.tokens[:, 80] == MARK).all()
    for tokens, answers in zip(found.tokens.tolist(), found.answers.tolist(), strict=True):
        stored = {tuple(tokens[i : i + 2]): tokens[i + 2 : i + 4] for i in range(0, 80, 4)}
        assert len(stored) == 20  # no key twice
        asked = [tuple(tokens[i : i + 2]) for i in range(81, len(tokens), 4)]
        assert len(set(asked)) == QUESTIONS
        assert [token for key in asked for token in stored[key]] == answers


def test_keys_and_values_have_symbols_of_their_own():
    tokens = drawn(pairs=SYMBOLS).tokens[:, : 4 * SYMBOLS].unflatten(1, (-1, 4))
    assert tokens[..., :2].max() < SYMBOLS <= tokens[..., 2:].min()
    assert tokens.max() < SYMBOLS + VALUES < VOCABULARY


def test_a_seed_gives_the_same_sequences_and_another_one_others():
    assert torch.equal(drawn().tokens, drawn().tokens)
    assert not torch.equal(drawn().tokens, drawn(seed=1).tokens)


@pytest.mark.parametrize("pairs", [QUESTIONS - 1, SYMBOLS**2 + 1])
def test_sizes_that_cannot_be_drawn_are_refused(pairs):
    with pytest.raises(ValueError, match="expected from 4 to 16384 pairs"):
        drawn(pairs=pairs)
