"""A context extension in a model: what it computes, what a cache keeps, how it goes, and what is refused."""

import copy

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PhiConfig, PhiForCausalLM, StaticCache

from sharpmax.core.attention import reference_attention
from sharpmax.core.cards import Card
from sharpmax.core.extension import DynamicNTK, SelfExtend, Unscaled, Yarn
from sharpmax.core.policies import PAPER, Constant, EntropyTarget, LengthScaled, LogLinear
from sharpmax.hf import sharpen, unsharpen
from tests.hf.families import build

TRAINED, LENGTH, VOCABULARY = 16, 50, 40
SCALED = [DynamicNTK(4.0, TRAINED), Yarn(4.0, TRAINED), Yarn(4.0, TRAINED, False), SelfExtend(4.0, TRAINED, 5)]
EVERY = [Unscaled(4.0, TRAINED), *SCALED]
named = lambda value: type(value).__name__  # noqa: E731


def llama(layers=2, trained=TRAINED, **changes):
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(
        vocab_size=VOCABULARY, num_hidden_layers=layers, max_position_embeddings=trained, initializer_range=0.3,
        pad_token_id=0, eos_token_id=None, bos_token_id=None, **shape, **changes,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def ids(rows=1, length=LENGTH, seed=0):
    return torch.randint(1, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("extension", EVERY, ids=named)
def test_on_and_off_leaves_the_model_bit_equal(extension):
    model = llama()
    before, state = model(ids()).logits, copy.deepcopy(model.state_dict())
    with sharpen(model, PAPER, extension=extension):
        inside = model(ids()).logits
    assert not torch.equal(inside, before)
    assert torch.equal(model(ids()).logits, before)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in state.items())
    assert "forward" not in vars(model.model.rotary_emb)


@pytest.mark.parametrize("extension", SCALED, ids=named)
def test_it_goes_with_an_exception_a_lost_block_and_a_copy(extension):
    model = llama()
    before = model(ids()).logits
    with pytest.raises(IndexError), sharpen(model, extension=extension):
        model(ids() + VOCABULARY)  # tokens that there are not
    assert torch.equal(model(ids()).logits, before)
    sharpen(model, extension=extension)
    twin = copy.deepcopy(model)
    inside = model(ids()).logits
    assert torch.equal(twin(ids()).logits, inside)
    unsharpen(model)
    assert torch.equal(model(ids()).logits, before)
    assert torch.equal(twin(ids()).logits, inside)
    unsharpen(twin)
    assert torch.equal(twin(ids()).logits, before)


@pytest.mark.parametrize("extension", SCALED, ids=named)
def test_a_policy_nested_inside_keeps_the_outer_extension(extension):
    model = llama()
    with sharpen(model, PAPER, extension=extension):
        whole = model(ids()).logits
    with sharpen(model, extension=extension):
        with sharpen(model, PAPER):
            nested = model(ids()).logits
        with pytest.raises(ValueError, match="extended already"):
            sharpen(model, extension=extension)
    torch.testing.assert_close(nested, whole, rtol=0, atol=0)


def test_frequencies_are_those_of_transformers():
    model, tokens = llama(), ids()
    for extension, parameters in (
        (DynamicNTK(4.0, TRAINED), {"rope_type": "dynamic", "factor": 4.0}),
        (Yarn(4.0, TRAINED), {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}),
        (
            Yarn(4.0, TRAINED, False),
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED, "attention_factor": 1.0},
        ),
    ):
        theirs = llama(rope_parameters={**parameters, "rope_theta": 10000.0})
        with sharpen(model, extension=extension):
            assert torch.equal(model(tokens).logits, theirs(tokens).logits), extension


def test_dynamic_ntk_leaves_short_rows_as_they_are_whatever_else_is_in_the_batch():
    model, rows = llama(), ids(2)
    mask = torch.ones_like(rows)
    mask[0, : LENGTH - TRAINED] = 0  # the first row has as many tokens as were trained
    plain = model(rows[:1, -TRAINED:]).logits
    with sharpen(model, extension=DynamicNTK(4.0, TRAINED)):
        alone = model(rows[1:]).logits
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        both = model(rows, attention_mask=mask, position_ids=positions).logits
    torch.testing.assert_close(both[:1, -TRAINED:], plain, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(both[1:], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("extension", EVERY, ids=named)
def test_padding_at_the_end_says_what_each_text_says_alone(extension):
    model, long, short = llama(), ids(), ids(1, TRAINED + 5, seed=1)
    padded = torch.cat([torch.cat([short, torch.zeros(1, LENGTH - TRAINED - 5, dtype=torch.long)], 1), long])
    with torch.no_grad(), sharpen(model, PAPER, extension=extension):
        together = model(padded, attention_mask=(padded != 0).long()).logits
        alone = [model(each).logits for each in (short, long)]
    torch.testing.assert_close(together[:1, : short.shape[1]], alone[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(together[1:], alone[1], rtol=1e-4, atol=1e-4)


TWO_TEXTS = torch.cat([torch.arange(LENGTH - 7), torch.arange(7)])[None]


@pytest.mark.parametrize("extension", [e for e in EVERY if not isinstance(e, DynamicNTK)], ids=named)
def test_texts_told_apart_by_their_positions_are_read_alone(extension):
    model, tokens = llama(), ids()
    with torch.no_grad(), sharpen(model, PAPER, extension=extension):
        packed = model(tokens, position_ids=TWO_TEXTS, use_cache=False).logits
        for of in (slice(0, LENGTH - 7), slice(LENGTH - 7, None)):
            torch.testing.assert_close(packed[:, of], model(tokens[:, of]).logits, rtol=1e-4, atol=1e-4)


def test_dynamic_ntk_refuses_texts_told_apart_by_their_positions():
    model = llama()
    with (
        sharpen(model, extension=DynamicNTK(4.0, TRAINED)),
        pytest.raises(NotImplementedError, match="packed rows, wh"),
    ):
        model(ids(), position_ids=TWO_TEXTS, use_cache=False)


@pytest.mark.parametrize(("extension", "layers"), [(e, 1 if isinstance(e, DynamicNTK) else 3) for e in EVERY], ids=str)
def test_a_growing_cache_says_what_one_pass_says(extension, layers):
    """Dynamic NTK changes what deeper layers made of earlier tokens, so there only one layer can be the same."""
    model, tokens = llama(layers), ids()
    with torch.no_grad(), sharpen(model, LengthScaled.log_n(8), extension=extension):
        cache, found = None, []
        for start, end in ((0, 10), (10, 13), (13, 30), *((n, n + 1) for n in range(30, LENGTH))):
            step = model(tokens[:, start:end], past_key_values=cache, use_cache=True)
            cache = step.past_key_values
            found.append(step.logits[:, -1])
            whole = model(tokens[:, :end], use_cache=False).logits[:, -1]
            torch.testing.assert_close(found[-1], whole, rtol=1e-4, atol=1e-4)


def test_transformers_own_dynamic_ntk_does_not():
    """What the late rotation is for: there cached keys stay at the frequencies at which they came."""
    theirs = llama(1, rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0})
    tokens, cache = ids(), None
    with torch.no_grad():
        for start in range(LENGTH):
            step = theirs(tokens[:, start : start + 1], past_key_values=cache, use_cache=True)
            cache = step.past_key_values
        assert (step.logits[:, -1] - theirs(tokens).logits[:, -1]).abs().max() > 1e-3


@pytest.mark.parametrize("extension", EVERY, ids=named)
def test_generate_with_padding_says_what_each_prompt_says_alone(extension):
    model = llama(1)
    long, short = ids(1, 30), ids(1, 18, seed=1)
    padded = torch.cat([torch.cat([torch.zeros(1, 12, dtype=torch.long), short], 1), long])
    mask = (padded != 0).long()
    how = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    with sharpen(model, PAPER, extension=extension):
        together = model.generate(padded, attention_mask=mask, **how)[:, 30:]
        alone = [model.generate(each, **how)[:, each.shape[1] :] for each in (short, long)]
    assert torch.equal(together, torch.cat(alone))


def dense(model, tokens, extension, policy):
    """Return the last hidden states of Self-Extend, written with all logits, positions in pairs, in float64."""
    window, group = extension.neighbours, extension.group
    frequencies = model.model.rotary_emb.inv_freq.double()
    i = torch.arange(tokens.shape[1])
    distance = i[:, None] - i
    grouped = (i // group)[:, None] + window - window // group - i // group
    distance = torch.where(distance < window, distance, grouped)
    angle = distance[..., None].double() * frequencies  # (Lq, Lk, pairs): what a pair's product is turned by
    hidden = model.model.embed_tokens(tokens)
    for layer in model.model.layers:
        normed = layer.input_layernorm(hidden)
        of = layer.self_attn
        q, k, v = (
            part(normed).view(*normed.shape[:2], -1, of.head_dim).transpose(1, 2)
            for part in (of.q_proj, of.k_proj, of.v_proj)
        )
        k, v = (part.repeat_interleave(of.num_key_value_groups, 1) for part in (k, v))
        (qa, qb), (ka, kb) = (part.chunk(2, -1) for part in (q, k))
        along = qa[:, :, :, None] * ka[:, :, None] + qb[:, :, :, None] * kb[:, :, None]
        across = qb[:, :, :, None] * ka[:, :, None] - qa[:, :, :, None] * kb[:, :, None]
        # <R(a) q, k> = cos a (qa ka + qb kb) + sin a (qa kb - qb ka)
        logits = (along * angle.cos() - across * angle.sin()).sum(-1) * of.scaling
        visible = distance.new_ones(distance.shape).tril().bool().expand(logits.shape)
        eye = np.broadcast_to(np.eye(logits.shape[-1]), logits.shape)  # logits as products with unit keys
        weighed = reference_attention(logits.numpy(), eye, v.numpy(), policy=policy, mask=visible.numpy(), scale=1.0)
        hidden = hidden + of.o_proj(torch.from_numpy(weighed).transpose(1, 2).flatten(2))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return model.model.norm(hidden)


@pytest.mark.parametrize("policy", [Constant(1.0), PAPER, LogLinear(0.1, 0.2, -0.1), EntropyTarget(0.5)], ids=named)
@pytest.mark.parametrize("neighbours", [1, 5, 12])
def test_self_extend_is_what_a_dense_formulation_computes(policy, neighbours):
    model, tokens = llama().double(), ids(2, 30)
    extension = SelfExtend(4.0, TRAINED, neighbours)
    with torch.no_grad():
        expected = dense(model, tokens, extension, policy)
        with sharpen(model, policy, extension=extension):
            found = model.model(tokens).last_hidden_state
    budget = 1e-5  # the model computes angles and norms in float32: 30 positions at 6e-8 each, in two layers
    torch.testing.assert_close(found, expected, rtol=budget, atol=budget)


def test_the_observer_sees_the_whole_rows_of_self_extend():
    model, seen = llama(), {}
    with sharpen(
        model, extension=SelfExtend(4.0, TRAINED, 5), observer=lambda layer, stats: seen.update({layer: stats})
    ):
        model(ids(1, 30))
    assert set(seen) == {0, 1}
    torch.testing.assert_close(seen[0].count[0, 0], torch.arange(1.0, 31.0))
    assert (seen[0].entropy <= seen[0].count.log() + 1e-5).all()


@pytest.mark.parametrize("extension", SCALED, ids=named)
def test_a_policy_learns_through_it(extension):
    model = llama().requires_grad_(False)
    slope = torch.zeros(4, 1, requires_grad=True)
    with sharpen(model, LengthScaled(slope=slope, offset=1.0), extension=extension):
        model(ids()).logits.logsumexp(-1).sum().backward()
    assert slope.grad.abs().min() > 0


@pytest.mark.parametrize("extension", EVERY, ids=named)
def test_what_has_no_rotary_positions_or_a_scaling_of_its_own_is_refused_by_name(extension):
    plain = build("gpt2")
    with pytest.raises(NotImplementedError, match="GPT2LMHeadModel has no rotary positions"):
        sharpen(plain, extension=extension)
    for own in (
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8},
    ):
        scaled = llama(rope_parameters={**own, "rope_theta": 10000.0})
        with pytest.raises(
            NotImplementedError, match=f"LlamaForCausalLM has a scaling of its own .*{own['rope_type']}"
        ) as said:
            sharpen(scaled, extension=extension)
        assert "\n" not in str(said.value)
    with pytest.raises(ValueError, match=f"begins at {TRAINED} trained tokens, and LlamaForCausalLM has 32"):
        sharpen(llama(trained=32), extension=extension)
    with pytest.raises(NotImplementedError, match="several kinds"):
        sharpen(build("gemma3"), extension=extension)
    with pytest.raises(TypeError, match="expected a sharpmax extension"):
        sharpen(llama(), extension="yarn")
    for model in (plain, scaled):
        assert not any("sharpmax_site" in vars(module) for module in model.modules())


FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi3", "gpt_neox"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_turned_late_at_its_own_frequencies_is_itself(family):
    model = build(family, max_position_embeddings=64)
    tokens = torch.arange(3, 23)[None]
    with torch.no_grad():
        plain = model(tokens).logits
        both = DynamicNTK(4.0, 64), SelfExtend(2.0, 64, 40)
        for extension in both[: 1 if family == "gemma2" else 2]:  # it has a softcap
            with sharpen(model, extension=extension):
                torch.testing.assert_close(model(tokens).logits, plain, rtol=1e-4, atol=1e-4)
        with sharpen(model, extension=Yarn(4.0, 64)):
            assert not torch.equal(model(tokens).logits, plain)


def test_layers_without_positions_cannot_be_turned_late():
    model = build("smollm3", max_position_embeddings=64, no_rope_layers=[1, 0])
    with pytest.raises(NotImplementedError, match="does more between its rotation and its attention"):
        sharpen(model, extension=DynamicNTK(4.0, 64))
    with sharpen(model, extension=Yarn(4.0, 64)):
        model(torch.arange(3, 23)[None])


@pytest.mark.parametrize("extension", [DynamicNTK(4.0, TRAINED), SelfExtend(4.0, TRAINED, 5)], ids=named)
def test_a_family_that_turns_a_part_of_each_head_by_itself_is_refused_by_name(extension):
    shape = {"num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": TRAINED}
    model = PhiForCausalLM(PhiConfig(hidden_size=32, intermediate_size=32, vocab_size=VOCABULARY, **shape)).eval()
    with pytest.raises(NotImplementedError, match="takes the 4 of 8 numbers of a head that it turns out by itself"):
        sharpen(model, extension=extension)


def test_what_late_rotation_cannot_serve_is_refused_by_name():
    model = llama()
    for extension in (DynamicNTK(4.0, TRAINED), SelfExtend(4.0, TRAINED, 5)):
        with sharpen(model, extension=extension):
            with pytest.raises(NotImplementedError, match="static cache"):
                model(ids(), past_key_values=StaticCache(config=model.config, max_cache_len=64))
            ends = torch.tensor([0, LENGTH], dtype=torch.int32)
            with pytest.raises(NotImplementedError, match="packed rows"):
                model(ids(), cu_seq_lens_q=ends, cu_seq_lens_k=ends)


def test_a_card_switches_both_on(tmp_path):
    model = llama()
    Card(Constant(1.3), extension=Yarn(4.0, TRAINED)).save(tmp_path / "card.json")
    with sharpen(model, Constant(1.3), extension=Yarn(4.0, TRAINED)):
        expected = model(ids()).logits
    with sharpen(model, tmp_path / "card.json") as on:
        assert torch.equal(model(ids()).logits, expected)
        assert on.extension == Yarn(4.0, TRAINED)
    with pytest.raises(ValueError, match="extends the model already"):
        sharpen(model, tmp_path / "card.json", extension=Yarn(2.0, TRAINED))


def test_positions_that_count_padding_on_the_left_are_refused_by_dynamic_ntk():
    model, ids = build("llama", max_position_embeddings=16), torch.arange(24)[None] % 50 + 5
    padded = torch.cat([torch.zeros(1, 6, dtype=torch.long), ids], dim=1)
    mask = (torch.arange(30) >= 6).long()[None]
    with torch.no_grad(), sharpen(model, Constant(1.0), extension=DynamicNTK(4.0, 16)):
        alone = model(ids).logits[0, -1]
        told = model(padded, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp_min(0)).logits[0, -1]
        torch.testing.assert_close(told, alone)
        with pytest.raises(ValueError, match="these count the padding on its left: give position_ids"):
            model(padded, attention_mask=mask)
