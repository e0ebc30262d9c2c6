"""Evaluation against the plain way: one softmax over all items, however the sets were streamed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sharpmax
from sharpmax.experiments.max_retrieval.evaluate import draw_items, evaluate, judge, logit_rows
from sharpmax.models.max_retrieval import Head
from sharpmax.tasks.max_retrieval import block_of, items_from, random_rotation

MODULE = "sharpmax.experiments.max_retrieval.evaluate"
POLICIES = (sharpmax.Constant(1.0), sharpmax.PAPER, sharpmax.EntropyTarget(0.5), sharpmax.LengthScaled.log_n(16))
KEY = jax.random.key(3)


def trained_like(head):
    """Return parameters with logits spread enough for the rules to differ."""
    params = head.init(jax.random.key(0))
    return {**params, "Q": 6 * params["Q"]}


def plainly(head, params, rotation, policies, drawn, blocks, width):
    """Answer the drawn sets with all items in memory, in the framework's own words."""
    parts = [block_of(drawn.keys, b, width) for b in range(blocks)]
    priority, label = (jnp.concatenate(part, axis=-1) for part in zip(*parts, strict=True))
    features = head.item_features(params, items_from(priority, label, rotation))
    logits = head.logits(features, head.reader(params, drawn.query))
    weights = [sharpmax.softmax(logits, policy) for policy in policies]
    weights.append(jax.nn.one_hot(logits.argmax(axis=-1), logits.shape[-1]))
    pooled = [jnp.einsum("sn,snf->sf", w, features, precision="highest") for w in weights]
    correct = [head.decode(params, p).argmax(axis=-1) == drawn.target for p in pooled]
    return np.stack(correct), np.stack([w.max(axis=-1) for w in weights]), logits, priority


@pytest.mark.parametrize(
    ("block", "rotated"),
    [pytest.param(64, False, marks=pytest.mark.slow, id="one block"), pytest.param(16, True, id="streamed, rotated")],
)
def test_every_rule_equals_one_softmax_over_all_items(block, rotated, monkeypatch):
    monkeypatch.setattr(f"{MODULE}.BLOCK", block)
    for function in (draw_items, judge):
        function.clear_cache()  # jit keeps what it traced with the other block
    head = Head(width=16, key_width=16)
    params, rotation = trained_like(head), random_rotation(jax.random.key(9)) if rotated else None
    drawn, items = draw_items(64, rotation, KEY, jnp.arange(40))
    assert (items is None) == (block < 64)
    answers = judge(head, POLICIES, 64, params, rotation, drawn, items)
    correct, largest, logits, priority = plainly(head, params, rotation, POLICIES, drawn, 64 // block, block)
    np.testing.assert_allclose(answers.largest_weight, largest, rtol=2e-3)
    assert np.mean(np.asarray(answers.correct) == correct) > 0.99  # a decoder's tie may fall either way
    np.testing.assert_allclose(answers.entropy, sharpmax.entropy(logits), atol=1e-4)
    assert np.array_equal(answers.top_is_top, logits.argmax(axis=-1) == priority.argmax(axis=-1))
    np.testing.assert_allclose(answers.spread, logits.max(axis=-1) - logits.min(axis=-1), rtol=1e-4)
    for function in (draw_items, judge):
        function.clear_cache()


def test_memory_does_not_grow_with_the_size():
    head = Head(width=8, key_width=8)
    params = head.init(jax.random.key(0))

    drawn, items = draw_items(2**15, None, KEY, jnp.arange(2))
    assert items is None

    def temporary_bytes(n):
        compiled = judge.lower(head, (sharpmax.PAPER,), n, params, None, drawn, None).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert 0 < temporary_bytes(2**20) <= temporary_bytes(2**16)


def test_sets_do_not_depend_on_how_many_are_judged_at_once(monkeypatch):
    head = Head(width=8, key_width=8)
    params = trained_like(head)
    arguments = {"key": KEY, "n": 32, "sets": 24}
    whole, low = evaluate(head, params, None, POLICIES[:2], **arguments)
    monkeypatch.setattr(f"{MODULE}.ITEMS_AT_ONCE", {"cpu": 32 * 8, "gpu": 32 * 8})
    parts, low_parts = evaluate(head, params, None, POLICIES[:2], **arguments)
    np.testing.assert_allclose(whole.largest_weight, parts.largest_weight, rtol=1e-5)
    assert whole.correct.shape == (3, 24)
    assert low["tf32"].correct.shape == low_parts["tf32"].correct.shape == (2, 6)


def test_rows_for_calibration_name_the_largest_priority():
    head = Head(width=8, key_width=8)
    logits, priority, drawn = logit_rows(head, 32, head.init(jax.random.key(0)), None, KEY, jnp.arange(8))
    assert logits.shape == priority.shape == (8, 32)
    assert np.array_equal(priority.argmax(axis=-1), drawn.top)
