"""Models on our Triton kernels: a padded batch, windows, a softcap and sinks, as transformers asks for them."""

import pytest
import torch

from sharpmax import PAPER
from sharpmax.hf import sharpen
from sharpmax.torch import IMPLEMENTATIONS
from tests.hf.families import build, tokens
from tests.marks import slow

if "triton" not in IMPLEMENTATIONS:
    pytest.skip("Triton is not installed", allow_module_level=True)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def padded():
    """Two prompts of more tokens than a window has, the second of them five shorter, padded to the left."""
    ids, seen = tokens(length=14).to(DEVICE), torch.ones(2, 14, dtype=torch.long, device=DEVICE)
    ids[1, :5], seen[1, :5] = 0, 0
    return {"input_ids": ids, "attention_mask": seen}


@pytest.mark.parametrize("family", ["gemma2", *slow("llama", "mistral", "gpt_oss")])
def test_kernels_and_dense_attention_give_a_padded_batch_the_same_logits_and_gradients(family):
    model, given = build(family).to(DEVICE), padded()
    found = []
    for implementation in ("triton", "eager"):
        with sharpen(model, PAPER, implementation=implementation) as sharpened:
            logits = model(**given).logits
        assert sharpened.calls == 2
        shown = logits[given["attention_mask"].bool()]
        found.append([shown, *torch.autograd.grad(shown.square().mean(), list(model.model.layers[0].parameters()))])
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() <= 1e-4 * other.norm()


@pytest.mark.parametrize("family", ["llama", *slow("gemma2", "gpt_oss")])
def test_kernels_and_dense_attention_generate_the_same_tokens(family):
    """A prompt, then one query at a time behind a cache that begins with padding."""
    model, given = build(family).to(DEVICE), padded()
    answers = []
    for implementation in ("triton", "eager"):
        with sharpen(model, PAPER, implementation=implementation):
            answers.append(model.generate(**given, max_new_tokens=3, do_sample=False))
    assert torch.equal(*answers)
    assert answers[0].shape == (2, 17)
