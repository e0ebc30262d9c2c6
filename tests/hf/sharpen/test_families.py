"""Every family: with Constant(1) a sharpened model is the model; caches, padding and the future change nothing."""

import copy

import pytest
import torch
import transformers

import sharpmax
from sharpmax.hf import attention_layers, sharpen
from tests.hf.families import DECODERS, ENCODERS, FAMILIES, PAIRED, build, inputs, output, tokens

POLICY = sharpmax.LogLinear(a=0.3, b=0.2, c=0.1, n0=8.0)
"""Depends on entropy and length, so a wrongly counted key shows."""


def widened(value):
    return value.double() if value.is_floating_point() else value


def assert_within_budget(actual, reference, judge):
    """Err at most twice what the model's own float32 attention errs against float64, plus two roundings."""
    budget = 2 * (reference.double() - judge).abs().max() + 2 * torch.finfo(torch.float32).eps * judge.abs().max()
    assert (actual.double() - judge).abs().max() <= budget


@pytest.mark.parametrize("family", FAMILIES)
def test_constant_one_is_the_models_own_attention(family):
    model, given = build(family), inputs(family)
    reference = output(model, **given)
    judge = output(copy.deepcopy(model).double(), **{name: widened(value) for name, value in given.items()})
    with sharpen(model) as sharpened:
        assert_within_budget(output(model, **given), reference, judge)
    assert sharpened.calls == sum(layer.runs for layer in attention_layers(model))
    assert torch.equal(output(model, **given), reference)


@pytest.mark.parametrize("family", ["llama", "gemma2", "bert", "t5"])
def test_half_precision_errs_no_more_than_the_models_own(family):
    model, given = build(family), inputs(family)
    model.bfloat16()
    judge = output(copy.deepcopy(model).double(), **given)
    reference = output(model, **given)
    with sharpen(model):
        actual = output(model, **given)
    assert actual.dtype == torch.bfloat16
    budget = 2 * (reference.double() - judge).abs().mean() + 2 * 2**-8 * judge.abs().mean()
    assert (actual.double() - judge).abs().mean() <= budget


@pytest.mark.parametrize("family", FAMILIES)
def test_a_policy_changes_the_output(family):
    model, given = build(family), inputs(family)
    plain = output(model, **given)
    with sharpen(model, sharpmax.Constant(2.0)):
        assert (output(model, **given) - plain).abs().max() > 1e-3 * plain.abs().max()


@pytest.mark.parametrize("family", DECODERS)
def test_future_tokens_never_change_past_outputs(family):
    model, ids = build(family), tokens()
    changed = ids.clone()
    changed[:, 12:] = tokens(seed=9)[:, 12:]
    with sharpen(model, POLICY):
        before, after = output(model, input_ids=ids), output(model, input_ids=changed)
    assert torch.equal(before[:, :12], after[:, :12])
    assert not torch.equal(before[:, 12:], after[:, 12:])


@pytest.mark.parametrize("family", DECODERS)
def test_cached_equals_uncached(family):
    model, ids = build(family), tokens()
    with sharpen(model, POLICY), torch.no_grad():
        whole = model(ids, use_cache=False).logits
        cache = model(ids[:, :10], use_cache=True).past_key_values
        parts = [
            model(ids[:, i : i + 1], past_key_values=cache, use_cache=True).logits for i in range(10, ids.shape[1])
        ]
    torch.testing.assert_close(torch.cat(parts, 1), whole[:, 10:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gemma3", "gpt_oss"])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_prompt_read_in_pieces_is_the_prompt(family, kind):
    """Several queries on a cache that holds some keys, and in a window has dropped others."""
    model, ids = build(family), tokens(batch=1)
    with sharpen(model, POLICY), torch.no_grad():
        whole = model(ids, use_cache=False).logits
        cache = (
            transformers.StaticCache(config=model.config, max_cache_len=32)
            if kind == "static"
            else transformers.DynamicCache(config=model.config)
        )
        parts = [model(piece, past_key_values=cache).logits for piece in ids.split(5, dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_equals_unpadded(family, side):
    model, ids = build(family), tokens(batch=1, length=16)
    longer = tokens(seed=3, batch=1)
    padding = torch.zeros(1, longer.shape[1] - 16, dtype=torch.long)
    parts = [padding, ids] if side == "left" else [ids, padding]
    batch = torch.cat([torch.cat(parts, 1), longer])
    mask = torch.cat([torch.cat([p != 0 for p in parts], 1), torch.ones_like(longer, dtype=torch.bool)]).long()
    position_ids = (mask.cumsum(-1) - 1).clamp(min=0)
    real = slice(-16, None) if side == "left" else slice(None, 16)
    # OPT derives positions from the mask itself.
    extra = {} if family == "opt" else {"position_ids": position_ids}
    with sharpen(model, POLICY):
        alone = output(model, input_ids=ids)
        together = output(model, input_ids=batch, attention_mask=mask, **extra)
    assert torch.isfinite(together[1]).all()
    torch.testing.assert_close(together[:1, real], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ENCODERS)
def test_padded_encoders_equal_unpadded(family):
    model, ids = build(family), tokens(batch=1, length=16)
    padded = torch.cat([ids, torch.zeros(1, 8, dtype=torch.long)], 1)
    with sharpen(model, POLICY):
        alone = output(model, input_ids=ids, attention_mask=torch.ones_like(ids))
        together = output(model, input_ids=padded, attention_mask=(padded != 0).long())
    torch.testing.assert_close(together[:, :16], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss", "gpt2"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation_is_greedy_decoding_of_the_sharpened_model(family, cache):
    model, ids = build(family), tokens(batch=1, length=10)
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with sharpen(model, POLICY), torch.no_grad():
        expected = ids
        for _ in range(8):
            following = model(expected, use_cache=False).logits[:, -1:].argmax(-1)
            expected = torch.cat([expected, following], 1)
        implementation = {"cache_implementation": "static", "disable_compile": True} if cache == "static" else {}
        found = model.generate(ids, **options, **implementation)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("family", sorted(set(PAIRED) - {"whisper"}))
def test_an_encoder_decoder_generates_what_it_predicts(family):
    model, ids = build(family), tokens(batch=1, length=10)
    with sharpen(model, POLICY), torch.no_grad():
        found = model.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None, num_beams=1)
        predicted = model(input_ids=ids, decoder_input_ids=found).logits.argmax(-1)
    assert torch.equal(found[:, 1:], predicted[:, :-1])


SMALL = {"vocab_size": 64, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
SMALL |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
LONG_T5 = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "local_radius": 4}
SERIES = {"prediction_length": 4, "context_length": 8, "lags_sequence": [1], "num_time_features": 1}
TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SAM = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
AUDIO = {"patch_embeds_hidden_size": 8, "depths": [1], "num_attention_heads": [2], "hidden_size": 8, "spec_size": 64}


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("LongT5ForConditionalGeneration", LONG_T5, "LongT5LocalAttention"),
        (
            "LongT5ForConditionalGeneration",
            {**LONG_T5, "encoder_attention_type": "transient-global"},
            "LongT5TransientGlobalAttention",
        ),
        ("PegasusXForConditionalGeneration", {**SMALL, "block_size": 8}, "PegasusXGlobalLocalAttention"),
        (
            "BigBirdPegasusForConditionalGeneration",
            {**SMALL, "attention_type": "original_full"},
            "BigBirdPegasusSelfAttention",
        ),
        ("BigBirdPegasusForConditionalGeneration", SMALL, "BigBirdPegasusBlockSparseAttention"),
        ("InformerForPrediction", {**SMALL, **SERIES, "attention_type": "prob"}, "InformerProbSparseAttention"),
        ("GitForCausalLM", {**TOWER, "vocab_size": 64, "vision_config": TOWER}, "GitSelfAttention"),
        ("SamVisionModel", {**SAM, "output_channels": 8, "global_attn_indexes": [0]}, "SamVision.*Attention"),
        ("ClapAudioModel", AUDIO, "ClapAudioSelfAttention"),
    ],
)
def test_a_model_that_would_be_sharpened_in_part_is_refused_by_name(name, config, words):
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**config))
    before = dict(vars(model.config))
    with pytest.raises(NotImplementedError, match=f"is a {words}, which .* sharpened in part"):
        sharpen(model, sharpmax.PAPER)
    assert vars(model.config) == before


def test_the_part_that_asks_the_interface_is_sharpened():
    config = transformers.LongT5Config(**LONG_T5, num_decoder_layers=1)
    model = transformers.LongT5ForConditionalGeneration(config)
    with sharpen(model.decoder, sharpmax.Constant(2.0)) as sharpened:
        model(input_ids=tokens(), decoder_input_ids=tokens())
    assert sharpened.calls == 2


def test_a_family_is_refused_only_where_it_bypasses():
    config = transformers.InformerConfig(**SMALL, **SERIES, attention_type="full")
    model = transformers.InformerForPrediction(config)
    assert len(attention_layers(model)) == 3


def test_padding_hidden_by_a_large_negative_number_is_not_counted():
    """MarkupLM adds -1e4; in bfloat16 that is -9984."""
    config = transformers.MarkupLMConfig(
        **TOWER, vocab_size=64, max_position_embeddings=32, max_depth=4, xpath_unit_hidden_size=4
    )
    model, ids, counts = transformers.MarkupLMModel(config).eval(), tokens(), []
    mask = torch.ones_like(ids)
    mask[0, 16:] = 0
    for dtype in (torch.float32, torch.bfloat16):
        with sharpen(model.to(dtype), observer=lambda _, stats: counts.append(stats.count[:, 0, 0].tolist())):
            output(model, input_ids=ids, attention_mask=mask)
    assert counts == [[16, 24]] * 2


def test_what_lies_outside_a_shifted_window_is_not_counted():
    """Swin adds -100 there. Windows of four: a corner sees itself, an edge two, and the middle all four."""
    counts = {}
    with sharpen(build("swin"), observer=lambda layer, stats: counts.setdefault(layer, stats.count)) as on:
        output(on.model, **inputs("swin"))
    assert counts[0].unique().tolist() == [4]
    assert counts[1].unique().tolist() == [1, 2, 4]


def test_a_decoder_that_only_attends_eagerly_is_sharpened_by_itself_too():
    """Part of a model that is refused as a whole; its attention says `is_causal = False` and gets a causal mask."""
    config = transformers.BigBirdPegasusConfig(**SMALL, attention_type="original_full", max_position_embeddings=32)
    model = transformers.BigBirdPegasusForConditionalGeneration(config).eval()
    given = {"input_ids": tokens(), "decoder_input_ids": tokens(1)}
    plain = output(model, **given)
    with sharpen(model.model.decoder):
        torch.testing.assert_close(output(model, **given), plain)
    with sharpen(model.model.decoder.layers[0]):
        torch.testing.assert_close(output(model, **given), plain)
