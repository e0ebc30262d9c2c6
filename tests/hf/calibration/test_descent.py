"""What a policy costs on text: the divergence from the plain model, or the rise of the loss."""

import pytest
import torch

import sharpmax
from sharpmax.hf import sharpen
from sharpmax.hf.calibration.descent import Recipe, text_cost
from sharpmax.hf.calibration.learn import learn
from sharpmax.hf.calibration.text_loss import token_losses
from tests.hf.calibration.questions import QUESTIONS, TEXT


def cost_of(loaded, ids, policy, truth=0.0):
    """Return what the policy costs on windows of ids, on the whole."""
    with torch.no_grad():
        plain = loaded.hidden(ids)
        with sharpen(loaded.model, policy):
            return float(text_cost(loaded, plain, loaded.hidden(ids), ids[None], [Recipe(truth=truth)], chunk=16)[0])


def test_the_cost_of_text_is_the_divergence(loaded):
    policy = sharpmax.Constant(1.7)
    ids = loaded.tokens(TEXT)[:, :48].reshape(2, 24)
    with torch.no_grad():
        plain = torch.log_softmax(loaded.model(ids).logits, -1)
        with sharpen(loaded.model, policy):
            sharp = torch.log_softmax(loaded.model(ids).logits, -1)
        apart = float((plain.exp() * (plain - sharp)).sum(-1).mean())
    assert cost_of(loaded, ids, policy) == pytest.approx(apart, rel=1e-4)


def test_truth_counts_the_loss_of_the_text_itself(loaded):
    """Text that the policy predicts better is no cost: with truth 1 the cost is the rise of its loss, signed."""
    ids = loaded.tokens(TEXT)[:, :48].reshape(2, 24)
    for beta in (0.6, 1.7):
        policy = sharpmax.Constant(beta)
        with torch.no_grad():
            before = token_losses(loaded, ids).mean()
            with sharpen(loaded.model, policy):
                rise = float(token_losses(loaded, ids).mean() - before)
        assert cost_of(loaded, ids, policy, truth=1.0) == pytest.approx(rise, rel=1e-3)
        mean = (cost_of(loaded, ids, policy) + rise) / 2
        assert cost_of(loaded, ids, policy, truth=0.5) == pytest.approx(mean, rel=1e-3)
    with pytest.raises(ValueError, match="truth from 0 to 1, got 2"):
        Recipe(truth=2.0)


def test_the_penalty_holds_the_model_to_itself(loaded):
    ids = loaded.tokens(TEXT)[:, :64]
    assert float(cost_of(loaded, ids, sharpmax.Constant(1.0))) == pytest.approx(0, abs=1e-6)
    apart = {}
    for penalty in (0.0, 100.0):
        recipe = Recipe(steps=12, learning_rate=0.05, penalty=penalty, windows=(64,), n0=8.0)
        policy = learn(loaded, lambda step: QUESTIONS, [ids], recipe).policy
        with torch.no_grad():
            apart[penalty] = float(cost_of(loaded, ids, policy))
    assert apart[100.0] < apart[0.0] / 2
