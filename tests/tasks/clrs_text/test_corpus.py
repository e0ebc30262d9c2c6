"""Streams, the published validation set, and a split that shares nothing."""

import dataclasses
import gzip
from itertools import islice

import pytest

from sharpmax.tasks.clrs_text import corpus as corpora
from sharpmax.tasks.clrs_text.corpus import Plan, corpus, corpus_folder, training
from sharpmax.tasks.clrs_text.examples import VALIDATION_SEEDS, same_answer, stream, validation

PLAN = Plan(("bfs", "kmp_matcher", "minimum"), (4, 5), (4, 8), train_examples=200, test_samples=20)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache that has the generator's source."""
    from sharpmax.tasks.clrs_text.generator import clrs_generator

    clrs_generator()
    monkeypatch.setenv("SHARPMAX_CACHE", str(tmp_path))
    return tmp_path


def test_a_stream_is_its_seed():
    def first(seed):
        return list(islice(stream("dijkstra", 6, seed=seed), 4))

    assert first(1) == first(1)
    assert first(1) != first(2)
    assert all(e.question.startswith("dijkstra:\n") and e.answer.endswith("\n\n") for e in first(1))


@pytest.mark.parametrize(("algorithm", "length", "word"), [("bogosort", 4, "bogosort"), ("bfs", 3, "4")])
def test_a_stream_that_cannot_be_is_refused_at_the_call(algorithm, length, word):
    with pytest.raises(ValueError, match=word):
        stream(algorithm, length, seed=0)


@pytest.mark.parametrize("seed", [None, -1, 2**32, 1.5])
def test_a_stream_without_a_seed_is_refused_at_the_call(seed):
    with pytest.raises(ValueError, match="expected a seed"):
        stream("bfs", 4, seed=seed)


def test_hints_show_the_trace():
    plain, hinted = (next(stream("insertion_sort", 5, seed=0, hints=hints)) for hints in (False, True))
    assert "trace" not in plain.question
    assert "initial_trace:" in hinted.question
    assert " | " in hinted.answer


def test_the_published_validation_convention():
    examples = validation("minimum", 4, samples=3)
    assert len(examples) == 3 * len(VALIDATION_SEEDS)
    assert examples[:3] == list(islice(stream("minimum", 4, seed=3), 3))


def test_no_training_example_is_a_test_example(cache):
    made = corpus(PLAN)
    asked = {example.question for example in made.test}
    assert len(made.train) == 200
    assert not asked & {example.question for example in made.train}
    # Without the care, it would happen: the same draws, nothing forbidden, meet the test set.
    careless, _ = training(PLAN, frozenset(), seed=PLAN.train_seed, count=200)
    assert asked & {example.question for example in careless}


def test_a_question_is_asked_once(cache):
    """Two segments are two segments at any length."""
    plan = Plan(("minimum", "segments_intersect"), (4,), (4, 8), train_examples=5, test_samples=2)
    asked = [(example.algorithm, example.length) for example in corpus(plan).test]
    assert asked == [("minimum", 4)] * 10 + [("minimum", 8)] * 10 + [("segments_intersect", 4)] * 10


def test_a_corpus_comes_back_from_disk_the_same_and_its_missing_shard_is_made_again(cache, monkeypatch):
    first = corpus(PLAN)
    (corpus_folder(PLAN) / "test-bfs.jsonl.gz").unlink()
    assert corpus(PLAN) == first
    monkeypatch.setattr(corpora, "stream", lambda *_, **__: pytest.fail("generated again"))
    assert corpus(PLAN) == first


def test_a_shard_that_was_changed_is_refused(cache):
    corpus(PLAN)
    file = corpus_folder(PLAN) / "test-bfs.jsonl.gz"
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()).replace(b"1", b"0")))
    with pytest.raises(ValueError, match="delete it"):
        corpus(PLAN)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"\x1f\x8b\x08\x00", gzip.compress(b"[]\n"), gzip.compress(b"x")[:-9]],
    ids=["empty", "not compressed", "a header", "another content", "cut short"],
)
def test_a_shard_that_is_damaged_is_refused_in_the_same_words(content, cache):
    corpus(PLAN)
    (corpus_folder(PLAN) / "test-bfs.jsonl.gz").write_bytes(content)
    with pytest.raises(ValueError, match="delete it"):
        corpus(PLAN)


def test_what_is_always_too_long_ends_with_an_error_not_in_drawing_for_ever(cache):
    with pytest.raises(ValueError, match="more than 20 characters; train on"):
        training(dataclasses.replace(PLAN, most_characters=20), frozenset(), seed=1, count=5)
    with pytest.raises(ValueError, match="more than 20 characters; ask at"):
        corpus(dataclasses.replace(PLAN, algorithms=("bfs",), most_characters=20))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"algorithms": ("bogosort",)}, "bogosort"),
        ({"train_lengths": (0,)}, "got 0"),
        ({"test_lengths": (3,)}, "got 3"),
        ({"test_samples": 0}, "samples"),
        ({"train_examples": 0}, "at least 1 training example"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_before_any_work(options, word):
    with pytest.raises(ValueError, match=word):
        Plan(**options)


def test_what_is_too_long_is_left_out_and_counted(cache):
    short = dataclasses.replace(PLAN, most_characters=90)
    made = corpus(short)
    assert made.left_out["test"] == 20 * 5
    assert not [example for example in made.test if (example.algorithm, example.length) == ("bfs", 8)]


def test_training_never_draws_from_the_validation_seeds():
    with pytest.raises(ValueError, match="seeds"):
        Plan(train_seed=90)


def test_only_white_space_is_forgiven():
    assert same_answer(" [0.1  0.2]", "[0.1 0.2]\n\n")
    assert not same_answer("[0.1 0.20]", "[0.1 0.2]\n\n")
