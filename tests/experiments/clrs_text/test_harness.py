"""CLRS-Text in lm-evaluation-harness: its verdict is that of one pass."""

import sys
from itertools import islice

import pytest

import sharpmax
from sharpmax.experiments.clrs_text.harness import clrs_text_task
from sharpmax.hf import sharpen
from sharpmax.hf.finetune.answer_batches import encode
from sharpmax.hf.finetune.answer_model import right_tokens
from sharpmax.hf.finetune.train import Recipe, finetune
from sharpmax.hf.models.gemma import gemma
from sharpmax.hf.models.harness import harness_model
from sharpmax.tasks.clrs_text.examples import stream, validation


def test_a_missing_harness_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.api.task", None)
    with pytest.raises(ImportError, match="pip install lm-eval"):
        clrs_text_task()


def test_no_question_stands_solved_before_itself():
    """Of four nodes there are few graphs: the first draws of any seed meet the questions."""
    task = clrs_text_task(("bridges",), (4,), samples=20, shots=5)
    documents = task.dataset["test"]
    assert len(documents) == 100
    for document in documents:
        *solved, question = document["question"].split("bridges:\n")[1:]
        assert len(solved) == 5
        assert not any(shot.startswith(question) for shot in solved)
    first = "".join(e.question + e.answer for e in islice(stream("bridges", 4, seed=1), 5))
    assert any(e.question in first for e in validation("bridges", 4, samples=20))  # so it had to be seen to


@pytest.mark.parametrize("options", [{"algorithms": ()}, {"lengths": ()}, {"shots": -1}])
def test_nothing_to_ask_is_refused(options):
    with pytest.raises(ValueError, match="expected algorithms, lengths and 0 shots or more"):
        clrs_text_task(**{"algorithms": ("bfs",), "lengths": (4,), **options})


@pytest.mark.slow  # it learns answers by heart first; tests/hf/models/test_harness.py asks a model as it is
@pytest.mark.filterwarnings("ignore")
def test_the_harness_says_what_one_pass_says_with_and_without_a_card(tmp_path):
    import lm_eval

    asked = validation("minimum", 4, samples=4)
    loaded = gemma("gemma-tiny")
    pairs = encode(loaded.tokenizer, [(example.question, example.answer) for example in asked])
    recipe = Recipe(steps=250, tokens=1024, learning_rate=3e-3, save_every=0, log_every=250)
    finetune(loaded.model, pairs, recipe, policy=sharpmax.PAPER, folder=tmp_path)  # by heart: some answers are right
    card = tmp_path / "card.json"
    sharpmax.PAPER.save(card)
    for policy, given in ((sharpmax.Constant(1.0), None), (sharpmax.PAPER, card)):
        with sharpen(loaded.model, policy):
            right = right_tokens(loaded.model, pairs)
        expected = sum(r == len(p.ids) - p.start for r, p in zip(right, pairs, strict=True)) / len(pairs)
        wrapped = harness_model(loaded, given)
        try:
            task = clrs_text_task(("minimum",), (4,), samples=4)
            found = lm_eval.simple_evaluate(model=wrapped, tasks=[task], bootstrap_iters=0)
        finally:
            wrapped.restore()
        assert found["results"]["clrs_text"]["exact_match,none"] == pytest.approx(expected)
        assert expected > 0
