"""Learning a policy by gradient: it reaches every head, changes nothing else, and continues after a kill."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LlavaConfig, LlavaForConditionalGeneration

from sharpmax.hf.calibration import descent_state
from sharpmax.hf.calibration.answers import answer_losses
from sharpmax.hf.calibration.descent import Recipe
from sharpmax.hf.calibration.learn import learn, learn_side_by_side, query_heads
from tests.hf.calibration.questions import QUESTIONS, TEXT
from tests.hf.families import build


def test_learning_moves_every_head_and_only_the_policy(loaded):
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    recipe = Recipe(steps=12, learning_rate=0.05, penalty=0.0, windows=(32,), n0=8.0)
    result = learn(loaded, lambda step: QUESTIONS, [loaded.tokens(TEXT)], recipe)
    asked = result.course.answers
    assert asked[-1] < asked[0]
    assert asked[0] == pytest.approx(float(answer_losses(loaded, QUESTIONS).mean().detach()), rel=1e-5)
    for layer in result.policy.policies:
        assert np.shape(layer.a) == (4, 1)
        for name in "abc":
            assert np.all(np.asarray(getattr(layer, name)) != 0)
    for name, value in loaded.model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.requires_grad and parameter.grad is None for parameter in loaded.model.parameters())


def test_only_what_is_to_be_learned_is(loaded):
    recipe = Recipe(learned="b", steps=2, penalty=0.0, windows=(32,))
    for layer in learn(loaded, lambda step: QUESTIONS, [loaded.tokens(TEXT)], recipe).policy.policies:
        assert not np.any(layer.a) and not np.any(layer.c) and np.all(layer.b)  # noqa: PT018
    with pytest.raises(ValueError, match="a, b, c"):
        Recipe(learned="d")


def test_side_by_side_is_as_one_by_one(loaded):
    """Each with its own questions, allowance and seed; one of them learns b alone."""
    recipes = [
        Recipe(steps=4, learning_rate=0.05, windows=(16, 32), text_tokens=64, n0=8.0, seed=1),
        Recipe("b", 4, learning_rate=0.05, allowed=0.01, windows=(16, 32), text_tokens=64, n0=8.0, seed=2),
    ]
    draws = [lambda step: QUESTIONS[:2], lambda step: QUESTIONS[1:]]
    texts = [loaded.tokens(TEXT), loaded.tokens(TEXT[::-1])]
    for alone, together in zip(
        (learn(loaded, d, texts, r) for d, r in zip(draws, recipes, strict=True)),
        learn_side_by_side(loaded, draws, texts, recipes),
        strict=True,
    ):
        np.testing.assert_allclose(alone.course.cost, together.course.cost, rtol=1e-3, atol=1e-6)
        for one, other in zip(alone.policy.policies, together.policy.policies, strict=True):
            for name in "abc":
                np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=2e-3)
    with pytest.raises(ValueError, match="side by side"):
        learn_side_by_side(loaded, draws, texts, [recipes[0], Recipe(steps=9)])


def test_it_learns_under_autocast_with_logits_in_float32(loaded):
    """What a GPU does: products in bfloat16, while losses and the cost of text keep their digits."""
    recipe = Recipe(steps=8, learning_rate=0.05, penalty=1.0, windows=(32,), n0=8.0)
    exact = learn(loaded, lambda step: QUESTIONS, [loaded.tokens(TEXT)], recipe).course
    with torch.autocast("cpu", torch.bfloat16):
        assert loaded.logits(loaded.hidden(loaded.tokens(TEXT))).dtype == torch.float32
        half = learn(loaded, lambda step: QUESTIONS, [loaded.tokens(TEXT)], recipe).course
    np.testing.assert_allclose(half.answers, exact.answers, rtol=0.02)
    assert half.answers[-1] < half.answers[0]


class _KilledError(Exception):
    """As by kill -9: nothing is written on the way out."""


@pytest.mark.parametrize(
    ("end", "keeping_takes", "begins_at"),
    [
        pytest.param(KeyboardInterrupt, 0.0, 8, id="Ctrl-C"),
        pytest.param(KeyboardInterrupt, 1000.0, 8, id="Ctrl-C where keeping takes long"),
        pytest.param(_KilledError, 0.0, 8, id="killed where keeping is cheap"),
        pytest.param(_KilledError, 1000.0, 7, id="killed where keeping takes long: every 30 s"),
    ],
)
def test_a_fit_that_ended_early_continues_to_the_same_end(end, keeping_takes, begins_at, loaded, tmp_path, monkeypatch):
    """Steps of 15 seconds by the clock; a state is kept at each, or where keeping takes long at every second one."""
    recipe = Recipe(steps=12, learning_rate=0.05, allowed=0.01, windows=(16, 32), text_tokens=32, n0=8.0)
    texts = [loaded.tokens(TEXT)]
    whole = learn(loaded, lambda step: QUESTIONS, texts, recipe)
    now = [0.0]
    monkeypatch.setattr(descent_state.time, "monotonic", lambda: now[0])
    write = descent_state.store

    def slowly(*state):
        write(*state)
        now[0] += keeping_takes

    monkeypatch.setattr(descent_state, "store", slowly)

    def killed(step):
        now[0] += 15
        if step == 8:
            raise end
        return QUESTIONS

    keep = tmp_path / "fit.safetensors"
    with pytest.raises(end):
        learn(loaded, killed, texts, recipe, keep=keep)
    asked = []
    again = learn(loaded, lambda step: asked.append(step) or QUESTIONS, texts, recipe, keep=keep)
    assert asked == list(range(begins_at, 12))
    assert again.course == whole.course
    assert again.policy == whole.policy
    with pytest.raises(ValueError, match="another fit"):
        learn(loaded, killed, texts, Recipe(steps=12, windows=(16,)), keep=keep)


def test_a_fit_by_another_recipe_or_on_another_text_is_not_continued(loaded, tmp_path):
    texts, keep = [loaded.tokens(TEXT)], tmp_path / "fit.safetensors"
    recipe = Recipe(steps=2, windows=(16,), text_tokens=32)

    def fit(texts, recipe):
        return learn(loaded, lambda step: QUESTIONS, texts, recipe, keep=keep)

    first = fit(texts, recipe)
    for other in ((texts, replace(recipe, learned="a")), (texts, replace(recipe, steps=1)), ([texts[0] + 1], recipe)):
        with pytest.raises(ValueError, match=r"fit\.safetensors keeps another fit than this one"):
            fit(*other)
    assert fit(texts, recipe).policy == first.policy


def test_ctrl_c_amid_the_change_of_a_step_keeps_no_half_of_it(loaded, tmp_path, monkeypatch):
    recipe = Recipe(steps=6, learning_rate=0.05, allowed=0.01, windows=(16,), text_tokens=32, n0=8.0)
    texts, keep, calls = [loaded.tokens(TEXT)], tmp_path / "fit.safetensors", []
    whole = learn(loaded, lambda step: QUESTIONS, texts, recipe)
    step = torch.optim.Adam.step

    def half(self, *given):
        step(self, *given)
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(torch.optim.Adam, "step", half)
    with pytest.raises(KeyboardInterrupt):
        learn(loaded, lambda step: QUESTIONS, texts, recipe, keep=keep)
    again = learn(loaded, lambda step: QUESTIONS, texts, recipe, keep=keep)
    assert again.course == whole.course
    assert again.policy == whole.policy


def test_a_price_follows_what_is_allowed(loaded):
    """Too much is allowed: the price falls. Too little: it rises, and the cost stays lower."""
    ids, ends = loaded.tokens(TEXT)[:, :64], {}
    for allowed in (1.0, 1e-7):
        recipe = Recipe(steps=30, learning_rate=0.05, penalty=1.0, allowed=allowed, windows=(64,), n0=8.0)
        course = learn(loaded, lambda step: QUESTIONS, [ids], recipe).course
        ends[allowed] = course.price[-1], course.cost[-1]
    assert ends[1.0][0] < 0.5 < 2 < ends[1e-7][0]
    assert ends[1e-7][1] < ends[1.0][1]


def test_each_kind_of_text_has_its_own_price(loaded):
    """One of two texts repeats a letter, and costs nothing: its price falls, the other's rises."""
    recipe = Recipe(steps=24, learning_rate=0.05, penalty=1.0, allowed=1e-6, windows=(16, 32), n0=8.0)
    easy = torch.zeros(1, 64, dtype=torch.long) + 7
    course = learn(loaded, lambda step: QUESTIONS, [loaded.tokens(TEXT)[:, :64], easy], recipe).course
    by_turn = [course.price[turn::4] for turn in range(4)]
    assert all(prices[0] == 1 for prices in by_turn)
    assert len({round(prices[-1], 6) for prices in by_turn}) > 1


def test_an_empty_text_holds_a_model_to_nothing(loaded):
    with pytest.raises(ValueError, match="texts of two tokens or more"):
        learn(loaded, lambda step: QUESTIONS, [loaded.tokens("")], Recipe(steps=1, windows=(32,)))


def test_layers_that_text_passes_by_cannot_be_fitted():
    parts = {"vision_config": build("clip").config, "text_config": build("llama").config}
    model = LlavaForConditionalGeneration(LlavaConfig(**parts, image_token_index=63)).eval()
    with pytest.raises(NotImplementedError, match=r"does not run .*vision_tower.*self_attn on text.*method search"):
        query_heads(model)
