"""Packed rows: documents end to end attend as each does alone, whether a mask comes along or not."""

import pytest
import torch

import sharpmax
from sharpmax.hf import sharpen
from sharpmax.hf.sharpen import paged
from sharpmax.hf.sharpen.interface import interface_attention
from tests.hf.families import VOCABULARY, build

SIZES = (3, 9, 1, 6)
POLICY = sharpmax.LogLinear(a=0.3, b=0.4, c=0.2)


@pytest.fixture
def documents():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(5, VOCABULARY, (1, n), generator=generator) for n in SIZES]


def packed(documents):
    ends = torch.tensor([0, *SIZES]).cumsum(0).to(torch.int32)
    lengths = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": max(SIZES), "max_length_k": max(SIZES)}
    positions = torch.cat([torch.arange(n) for n in SIZES])[None]
    return torch.cat(documents, dim=1), {"position_ids": positions, **lengths}


def test_a_packed_row_gives_each_document_its_own_logits(documents):
    model = build("llama").double()
    ids, lengths = packed(documents)
    with torch.no_grad(), sharpen(model, POLICY):
        alone = torch.cat([model(one).logits for one in documents], dim=1)
        together = model(ids, **lengths).logits
    torch.testing.assert_close(together, alone)


def test_without_a_mask_the_lengths_alone_tell_the_documents_apart(documents):
    model = build("llama")
    layer = model.model.layers[0].self_attn
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(1, 4, sum(SIZES), 8, dtype=torch.float64, generator=generator).requires_grad_()
    key, value = torch.randn(2, 1, 2, sum(SIZES), 8, dtype=torch.float64, generator=generator)
    _, lengths = packed(documents)
    with sharpen(model, POLICY):
        got, _ = interface_attention(layer, query, key, value, None, **lengths)
        alone = [
            interface_attention(layer, q, k, v, None)[0]
            for q, k, v in zip(*(x.split(SIZES, dim=2) for x in (query, key, value)), strict=True)
        ]
    torch.testing.assert_close(got, torch.cat(alone, dim=1))
    expected, gradient = (torch.autograd.grad(x.square().sum(), query)[0] for x in (torch.cat(alone, dim=1), got))
    torch.testing.assert_close(gradient, expected)


def test_an_observer_counts_within_the_document(documents):
    model, seen = build("llama"), []
    ids, lengths = packed(documents)
    with torch.no_grad(), sharpen(model, POLICY, observer=lambda layer, stats: seen.append(stats.count[0, 0])):
        model(ids, **lengths)
    assert seen[0].tolist() == [i + 1 for n in SIZES for i in range(n)]


def test_a_paged_cache_of_an_older_transformers_is_refused(monkeypatch):
    monkeypatch.setattr(paged, "OLDEST", (99, 0))
    model, x = build("llama"), torch.zeros(1, 4, 2, 8)
    with sharpen(model, POLICY):
        with pytest.raises(NotImplementedError, match=r"needs transformers 99\.0 or later, found \d"):
            model.init_continuous_batching()
        with pytest.raises(NotImplementedError, match="needs transformers"):
            interface_attention(model.model.layers[0].self_attn, x, x, x, None, cache=object())


@pytest.fixture
def causal():
    """A mask that knows nothing of documents."""
    return torch.ones(1, 1, sum(SIZES), sum(SIZES), dtype=torch.bool).tril()


def test_beside_a_mask_the_lengths_still_tell_the_documents_apart(documents, causal):
    model = build("llama")
    layer, (_, lengths) = model.model.layers[0].self_attn, packed(documents)
    query, key = torch.randn(1, 4, sum(SIZES), 8), torch.randn(1, 2, sum(SIZES), 8)
    with sharpen(model, POLICY):
        masked, _ = interface_attention(layer, query, key, key, causal, **lengths)
        bare, _ = interface_attention(layer, query, key, key, None, **lengths)
    torch.testing.assert_close(masked, bare)


def test_a_policy_of_the_position_is_refused_beside_a_mask(documents, causal):
    model, x = build("llama"), torch.zeros(1, 4, sum(SIZES), 8)
    layer, (_, lengths) = model.model.layers[0].self_attn, packed(documents)
    with sharpen(model, sharpmax.LengthScaled.llama4()), pytest.raises(NotImplementedError, match="query's position"):
        interface_attention(layer, x, x, x, causal, **lengths)
