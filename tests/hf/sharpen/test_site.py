"""An attention module of a sharpened model: rows that its policy leaves alone, and positions that its policy reads."""

import warnings

import pytest
import torch
from transformers import DynamicCache

import sharpmax
from sharpmax.hf import attention_layers, sharpen
from tests.hf.families import build, inputs, output, tokens


def test_a_policy_that_switched_itself_off_says_so_on_leaving():
    model = build("llama", max_position_embeddings=1024)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    with (
        pytest.warns(sharpmax.SilentPolicyWarning, match=r"above an entropy of 5\.945"),
        sharpen(model, sharpmax.PAPER),
    ):
        output(model, input_ids=tokens(length=600))


@pytest.mark.parametrize("how", ["read", "decoded", "self-extend"])
def test_rows_that_a_policy_leaves_alone_may_come_late(how):
    """After a short call, whose rows are too short to be left alone; and where no mask or cache of ours is read."""
    model = build("llama", max_position_embeddings=1024)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    extension = sharpmax.SelfExtend(2.0, 1024) if how == "self-extend" else None
    block = sharpen(model, sharpmax.PAPER, extension=extension)
    output(model, input_ids=tokens(length=8))
    if how == "decoded":
        cache = DynamicCache(config=model.config)
        for length in (380, *[1] * 60):
            output(model, input_ids=tokens(length=length), past_key_values=cache)
    else:
        output(model, input_ids=tokens(length=600))
    with pytest.warns(sharpmax.SilentPolicyWarning, match=r"some rows reached 6\.\d\d"):
        block.restore()


def test_rows_of_a_head_that_another_policy_serves_are_not_called_plain():
    """Head 3 averages, and is sharpened: PAPER serves the others, which look at few keys."""
    model = build("llama", max_position_embeddings=1024)
    with torch.no_grad():
        for layer in model.model.layers:
            weight = layer.self_attn.q_proj.weight
            weight.mul_(2000)
            weight[weight.shape[0] * 3 // 4 :] = 0
    highest = []
    policy = sharpmax.PerHead((*[sharpmax.PAPER] * 3, sharpmax.Constant(1.5)))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        with sharpen(model, policy, observer=lambda _, stats: highest.append(stats.entropy.amax((0, 2)))):
            model(tokens(length=600))
    assert all((of[:3] < 5.9).all() and of[3] > 6 for of in highest)


@pytest.mark.parametrize("of", ["position", "length"])
def test_a_position_is_the_models_own_behind_padding_and_in_a_static_cache(of):
    model, ids = build("llama"), tokens()[:, :9]
    policy = sharpmax.PerHead((sharpmax.LengthScaled(0.9, 1.0, 3.0, of=of),) * model.config.num_attention_heads)
    options = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    options |= {"disable_compile": True, "eos_token_id": None, "pad_token_id": 0}
    with sharpen(model, policy):
        dynamic, static = (
            torch.stack(model.generate(ids, cache_implementation=kind, **options).logits) for kind in (None, "static")
        )
        torch.testing.assert_close(static, dynamic, rtol=1e-4, atol=1e-5)
        padded = torch.cat([ids[:, :3], ids], 1)
        mask = torch.ones_like(padded).index_fill(1, torch.arange(3), 0)
        behind = torch.stack(model.generate(padded, attention_mask=mask, **options).logits)
        torch.testing.assert_close(behind, dynamic, rtol=1e-4, atol=1e-5)
    mixed = sharpmax.PerHead((sharpmax.PAPER, *policy.policies[1:]))
    with sharpen(model, mixed), pytest.raises(NotImplementedError, match="PerHead reads positions, which"):
        output(model, input_ids=padded, attention_mask=mask)


@pytest.mark.parametrize("of", ["position", "length"])
def test_positions_are_refused_in_cross_attention_whose_keys_are_others(of):
    """One token after another has other indices among the encoder's keys than all at once."""
    model, given = build("bart"), inputs("bart")
    policy = sharpmax.LengthScaled(0.5, 1.0, of=of)
    given = {**given, "decoder_input_ids": given["input_ids"][:, :5], "use_cache": False}
    given.pop("attention_mask", None)
    with sharpen(model, policy), pytest.raises(NotImplementedError, match="in cross attention"):
        model(**given)
    layers = [sharpmax.Constant(1.0) if "encoder_attn" in layer.name else policy for layer in attention_layers(model)]
    with sharpen(model, sharpmax.PerLayer(tuple(layers))):
        model(**given)  # its own tokens have positions
