"""Models on our Triton kernels: a padded batch, windows, a softcap and sinks, as transformers asks for them."""

import pytest
import torch

from sharpmax import PAPER, EntropyTarget, LogLinear
from sharpmax.hf import sharpen
from sharpmax.hf.sharpen import interface
from tests.hf.families import build, tokens
from tests.marks import slow
from tests.torch.kernels import DEVICE, needs_triton

pytestmark = needs_triton


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


@pytest.mark.gpu
@pytest.mark.parametrize("policy", [PAPER, LogLinear(torch.full((4, 1), 0.2), 0.1, 0.1), EntropyTarget(1.0)], ids=str)
@pytest.mark.parametrize("with_padding", [False, True])
def test_a_call_like_one_before_attends_as_the_first(policy, with_padding, monkeypatch):
    model, given = build("llama").to(DEVICE, torch.bfloat16), padded()
    if not with_padding:
        given = {"input_ids": given["input_ids"]}
    how = {"max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    quick = interface.attend_one
    taken = []

    def counted(*arguments):
        output = quick(*arguments)
        taken.append(output is not None)
        return output

    with sharpen(model, policy) as sharpened:
        monkeypatch.setattr(interface, "attend_one", lambda *_: None)
        first = model.generate(**given, **how)
        monkeypatch.setattr(interface, "attend_one", counted)
        again = model.generate(**given, **how)
        assert sharpened.calls == 2 * 12 * 2
    assert sum(taken) == 2 * 11
    assert all(torch.equal(a, b) for a, b in zip(first.logits, again.logits, strict=True))
