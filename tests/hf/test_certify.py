"""Certificates of models: no row of a real forward pass spreads further than proved, and the bound is not idle."""

from pathlib import Path

import numpy as np
import pytest
import torch

import sharpmax
from sharpmax.hf import load
from sharpmax.hf.certify import certify
from sharpmax.hf.projections import proved_spreads
from tests.hf.tiny import tiny

TEXT = "Attention that stays sharp at any size, whatever the length of the text it reads. " * 3
LICENSE = (Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8")
FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "smollm3", "gpt_oss", "gpt2", "bert"]
FAMILIES += ["albert"]


def assert_within(certificates):
    for head in certificates:
        assert 0 < head.measured_spread <= head.proved_spread * (1 + 1e-5), head


@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_spreads_within_the_proved_bound(family):
    loaded = tiny(family)
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if parameter.ndim == 1:  # gains and biases that are not what they start as
                generator = torch.Generator().manual_seed(len(name))
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.5)
    certificates = certify(loaded, TEXT, length=128)
    assert len(certificates) == 8
    assert_within(certificates)


@pytest.mark.parametrize(("name", "text"), [("minilm", LICENSE), ("rxnmapper", "CC(=O)Cl.OCC>>CCOC(C)=O" * 9)])
def test_real_weights_keep_to_the_bound(name, text):
    assert_within(certify(load(name), text, length=128))


def test_a_head_built_to_reach_the_bound_reaches_it():
    """GPT-2 has no rotary embedding: two tokens at ±v, and projections that read nothing but v, use it all."""
    loaded = tiny("gpt2")
    block = loaded.model.transformer.h[0]
    v = torch.linspace(-1, 1, 32)
    v = v / v.norm()
    with torch.no_grad():
        loaded.model.transformer.wpe.weight.zero_()
        signs = torch.where(torch.arange(64) % 2 == 0, 1.0, -1.0)
        loaded.model.transformer.wte.weight.copy_(signs[:, None] * v * 10)
        block.attn.c_attn.weight.zero_()
        block.attn.c_attn.bias.zero_()
        for start in (0, 32):
            for head in range(4):
                block.attn.c_attn.weight[:, start + head * 8] = v
    certificates = [head for head in certify(loaded, TEXT, length=64) if head.layer == 0]
    for head in certificates:
        assert 0.9 * head.proved_spread <= head.measured_spread <= head.proved_spread * (1 + 1e-5)


def test_yarn_counts():
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    plain, longer = (proved_spreads(tiny("llama", **c).model) for c in ({}, {"rope_parameters": rope}))
    np.testing.assert_allclose(longer / plain, (0.1 * np.log(4) + 1) ** 2)


def test_a_softcap_is_the_bound():
    assert proved_spreads(tiny("gemma2", attn_logit_softcapping=3.0).model).max() <= 6.0


def test_a_policy_multiplies_and_an_unbounded_one_is_refused():
    loaded = tiny("llama")
    plain, sharp = certify(loaded)[0], certify(loaded, policy=sharpmax.Constant(2.0))[0]
    assert sharp.log10_sizes()["0.5"] > plain.log10_sizes()["0.5"]
    with pytest.raises(ValueError, match="without bound"):
        certify(loaded, policy=sharpmax.LengthScaled.ssmax(0.4))


def test_an_unknown_family_is_refused():
    with pytest.raises(NotImplementedError, match="no certificate for opt"):
        certify(tiny("opt"))
