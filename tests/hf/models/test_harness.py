"""The wrapper for lm-evaluation-harness: the harness's own scores, sharpened."""

import sys

import pytest
import torch

import sharpmax
from sharpmax.hf import load
from sharpmax.hf.models.harness import harness_model


def test_a_missing_harness_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.models.huggingface", None)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(ImportError, match="pip install lm-eval"):
        harness_model(load("smollm2"))


@pytest.mark.filterwarnings("ignore")
def test_the_harness_scores_the_sharpened_model():
    from lm_eval.api.instance import Instance

    loaded = load("smollm2")
    request = Instance("loglikelihood", {}, ("The capital of France is", " Paris"), 0)

    def scored(card):
        wrapped = harness_model(loaded, card)
        try:
            return wrapped.loglikelihood([request], disable_tqdm=True)[0][0]
        finally:
            wrapped.restore()

    whole, prompt = loaded.tokens("The capital of France is Paris"), loaded.tokens("The capital of France is")
    with torch.no_grad():
        log_p = torch.log_softmax(loaded.model(whole).logits[0, prompt.shape[1] - 1], -1)[whole[0, -1]]
    assert scored(None) == pytest.approx(float(log_p), rel=1e-4)
    assert scored(sharpmax.Constant(1.0)) == pytest.approx(float(log_p), rel=1e-4)
    assert scored(sharpmax.Constant(1.5)) != pytest.approx(float(log_p), rel=1e-3)
