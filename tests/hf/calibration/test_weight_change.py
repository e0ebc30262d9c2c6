"""Changed weights: merging a scale says the same as scaling, and the originals come back as they were."""

import peft
import pytest
import torch

import sharpmax
from sharpmax.hf.calibration.weight_change import (
    Merged,
    Projections,
    add_low_rank,
    scale_outputs,
    scale_queries,
    weights_replaced,
)
from tests.hf.families import build
from tests.hf.tiny import tiny

HEADS = torch.tensor([0.5, 1.7, -0.3, 1.0])


@pytest.fixture(scope="module")
def exact():
    """The same model in float64: what is left then is an error of the algebra, not of rounding."""
    model = tiny("llama", max_position_embeddings=512)
    model.model.double()
    return model


@pytest.mark.parametrize("per_channel", [False, True])
def test_merged_scales_are_the_scaled_outputs_of_heads(exact, ids, per_channel):
    sides = Projections.of_model(exact.model)
    width = sides[0].output.in_features // len(HEADS)
    scale = HEADS[:, None] + 0.1 * torch.arange(width) if per_channel else HEADS
    columns = (scale if per_channel else scale[:, None].expand(-1, width)).reshape(-1).double()
    hooks = [side.output.register_forward_pre_hook(lambda _, given: (given[0] * columns,)) for side in sides]
    with torch.no_grad():
        scaled = exact.hidden(ids)
        for hook in hooks:
            hook.remove()
        plain, weights = exact.hidden(ids), {}
        for side in sides:
            scale_outputs(weights, side, scale)
        with Merged(weights):
            torch.testing.assert_close(exact.hidden(ids), scaled, rtol=1e-12, atol=1e-12)
        assert not torch.allclose(plain, scaled)
        assert torch.equal(exact.hidden(ids), plain)


@pytest.mark.parametrize("family", ["llama", "qwen2"])  # without a bias of the queries, and with one
def test_merged_temperatures_are_a_constant_policy_per_head(ids, family):
    model = tiny(family, max_position_embeddings=512)
    model.model.double()
    sides, weights = Projections.of_model(model.model), {}
    heads = torch.linspace(0.5, 1.6, model.model.config.num_attention_heads, dtype=torch.float64)
    if sides[0].query.bias is not None:
        torch.nn.init.normal_(sides[0].query.bias, generator=torch.Generator().manual_seed(0))
    policy = sharpmax.Constant(tuple((x,) for x in heads.tolist()))
    with torch.no_grad():
        with sharpmax.hf.sharpen(model.model, policy):
            sharpened = model.hidden(ids)
        for side in sides:
            scale_queries(weights, side, heads)
        assert any(name == "bias" for _, name in weights) == (family == "qwen2")
        with Merged(weights):
            # Norms and rotary positions of transformers round to float32 whatever the weights are.
            torch.testing.assert_close(model.hidden(ids), sharpened, rtol=1e-5, atol=2e-6)


def test_a_low_rank_is_that_of_peft():
    layer = torch.nn.Linear(12, 8, bias=False)
    holder = torch.nn.Sequential(layer)
    down, up = torch.randn(2, 12), torch.randn(8, 2)
    weights = {}
    add_low_rank(weights, layer, down, 2.0 * up)
    x = torch.randn(5, 12)
    with torch.no_grad(), weights_replaced(weights):
        ours = layer(x)
    adapted = peft.get_peft_model(holder, peft.LoraConfig(r=2, lora_alpha=4, target_modules=["0"]))
    of = adapted.base_model.model[0]
    with torch.no_grad():
        of.lora_A["default"].weight.copy_(down)
        of.lora_B["default"].weight.copy_(up)
        torch.testing.assert_close(ours, adapted(x))


def test_restored_are_the_very_same_parameters(loaded):
    before = dict(loaded.model.named_parameters())
    values = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    weights = {}
    for side in Projections.of_model(loaded.model):
        scale_outputs(weights, side, HEADS)
        scale_queries(weights, side, HEADS)
    merged = Merged(weights)
    changed = dict(loaded.model.named_parameters())
    assert list(changed) == list(before)
    assert sum(changed[name] is not before[name] for name in before) == 2 * len(Projections.of_model(loaded.model))
    assert all(isinstance(value, torch.nn.Parameter) and value.requires_grad for value in changed.values())
    merged.restore()
    merged.restore()
    assert all(value is before[name] for name, value in loaded.model.named_parameters())
    assert all(torch.equal(value, values[name]) for name, value in loaded.model.state_dict().items())


def test_the_weights_come_back_after_an_error(loaded):
    side = Projections.of_model(loaded.model)[0]
    kept, weights = side.output.weight, {}
    scale_outputs(weights, side, HEADS)

    def fail():
        with weights_replaced(weights):
            assert side.output.weight is not kept
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert side.output.weight is kept


def test_fused_projections_are_refused_by_name():
    with pytest.raises(NotImplementedError, match=r"GPT2Attention.*no linear q_proj"):
        Projections.of_model(build("gpt2"))
