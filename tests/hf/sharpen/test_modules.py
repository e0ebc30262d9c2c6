"""Attention outside transformers: `nn.MultiheadAttention` as it stands, and a slot for modules of one's own."""

import warnings

import pytest
import torch
from torch import nn

import sharpmax
from sharpmax.hf import Attention, sharpen
from tests.hf.sharpen.test_switch import state

SHARP = sharpmax.Constant(2.0)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masks", ["none", "padding", "causal", "both", "float"])
def test_multihead_attention_as_it_stands(batch_first, masks):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 4, batch_first=batch_first).eval()
    x = torch.randn(2, 6, 16) if batch_first else torch.randn(6, 2, 16)
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    given = {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "causal": {"attn_mask": hidden, "is_causal": True},
        "both": {"attn_mask": hidden, "key_padding_mask": padding},
        "float": {"attn_mask": torch.randn(6, 6)},
    }[masks]
    plain = module(x, x, x, need_weights=False, **given)[0]
    with sharpen(module):
        torch.testing.assert_close(module(x, x, x, need_weights=False, **given)[0], plain)
    with sharpen(module, SHARP):
        assert not torch.allclose(module(x, x, x, need_weights=False, **given)[0], plain)
    assert torch.equal(module(x, x, x, need_weights=False, **given)[0], plain)


def test_a_forward_of_ones_own_is_not_replaced():
    class Shifted(nn.MultiheadAttention):
        def forward(self, query, key, value, **options):
            output, weights = super().forward(query * 3, key, value, **options)
            return output + 1, weights

    class Same(nn.MultiheadAttention):
        """Differs in how it is made only."""

    with pytest.raises(
        NotImplementedError, match=r"^0 is a Shifted, an nn.MultiheadAttention with a forward of its own"
    ):
        sharpen(nn.Sequential(Shifted(16, 4)), SHARP)
    sharpen(Same(16, 4), SHARP).restore()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_an_encoder_of_pytorchs_own_does_not_pass_its_attention_by(padded, nested):
    """In evaluation its layers run as one fused kernel, and padded batches as nested tensors, out of our reach."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()
    x, padding = torch.randn(2, 6, 16), torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    given = {"src_key_padding_mask": padding} if padded else {}
    seen = ~padding if padded else ...
    before = state(model)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype
        plain = model(x, **given)
        with sharpen(model) as sharpened:
            torch.testing.assert_close(model(x, **given)[seen], plain[seen])
        assert sharpened.calls == 2
        with sharpen(model, SHARP):
            assert not torch.allclose(model(x, **given)[seen], plain[seen])
        assert torch.equal(model(x, **given), plain)
    assert state(model) == before


def test_a_module_of_ones_own_has_a_slot():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = Attention()

        def forward(self, q, k):
            return self.attend(q, k, k, is_causal=True)

    model, q, k = Mine(), torch.randn(1, 4, 3, 8), torch.randn(1, 2, 5, 8)
    plain = model(q, k)
    with sharpen(model):
        torch.testing.assert_close(model(q, k), plain)
    with sharpen(model, SHARP):
        assert not torch.allclose(model(q, k), plain)


@pytest.mark.parametrize("queries", [1, 3, 5])
@pytest.mark.parametrize("shape", [(2, 1, 1, 5), (5,), (2, 1, None, 5), (1, 4, None, 1)])
def test_a_slot_is_plain_attention_under_a_causal_mask_and_any_other(shape, queries):
    torch.manual_seed(0)
    slot, q, k = Attention(), torch.randn(2, 4, queries, 8), torch.randn(2, 2, 5, 8)
    mask = torch.rand([queries if axis is None else axis for axis in shape]) > 0.3
    expected = sharpmax.torch.attention(q, k, k, policy=sharpmax.Constant(1.0), mask=mask, is_causal=True)
    torch.testing.assert_close(slot(q, k, k, mask=mask, is_causal=True), expected)
    with sharpen(slot):
        torch.testing.assert_close(slot(q, k, k, mask=mask, is_causal=True), expected)


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_weights_of_multihead_attention_are_the_sharpened_ones(batch_first, average):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 4, batch_first=batch_first).eval()
    x = torch.randn(2, 6, 16) if batch_first else torch.randn(6, 2, 16)
    given = {"attn_mask": torch.ones(6, 6, dtype=torch.bool).triu(1), "average_attn_weights": average}
    plain, weights = module(x, x, x, **given)
    with sharpen(module) as sharpened:
        found = module(x, x, x, **given)
        assert sharpened.calls == 1
    torch.testing.assert_close(found, (plain, weights))
    with sharpen(module, SHARP):
        sharp, weights = module(x, x, x, **given)
        torch.testing.assert_close(sharp, module(x, x, x, **given, need_weights=False)[0])
    module.in_proj_weight.data[:16] *= 2  # beta is a scale on the queries
    module.in_proj_bias.data[:16] *= 2
    torch.testing.assert_close(weights, module(x, x, x, **given)[1])


def test_a_slot_that_cannot_be_sharpened_is_not_passed_over_in_silence():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.watched, self.attend = sharpmax.torch.WatchedAttention(), Attention()

    with pytest.raises(NotImplementedError, match="watched is a WatchedAttention, which can be watched and not sharp"):
        sharpen(Both(), sharpmax.Constant(2.0))


@pytest.mark.parametrize("mask", [torch.zeros(4, 4), [True]])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_slot_takes_a_boolean_mask_plain_and_sharpened(mask, is_causal):
    slot, x = Attention(), torch.randn(1, 2, 4, 8)
    with pytest.raises(TypeError, match="mask must be boolean"):
        slot(x, x, x, mask=mask, is_causal=is_causal)
    with sharpen(slot, sharpmax.Constant(2.0)), pytest.raises(TypeError, match="mask must be boolean"):
        slot(x, x, x, mask=mask, is_causal=is_causal)


def test_positions_are_refused_among_keys_of_another_sequence():
    """One query after another has other indices among the keys than all at once."""
    torch.manual_seed(0)
    policy = sharpmax.LengthScaled.llama4(4.0, 2.0)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 32, batch_first=True), 1).eval()
    slot = nn.ModuleList([Attention()])
    query, key = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8)
    with sharpen(decoder, policy), pytest.raises(NotImplementedError, match="among keys of another number"):
        decoder(torch.randn(1, 3, 16), torch.randn(1, 5, 16))
    with sharpen(slot, policy):
        with pytest.raises(NotImplementedError, match="among keys of another number"):
            slot[0](query, key, key)
        slot[0](query, key, key, is_causal=True)
