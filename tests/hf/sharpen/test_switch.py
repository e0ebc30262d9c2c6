"""Sharpening: on and off again whatever happens, per layer and head, beside PEFT, torch.compile and checkpointing."""

import copy
import itertools
import pickle
import warnings

import pytest
import torch
from torch import nn
from transformers import AlbertForMaskedLM

import sharpmax
from sharpmax.hf import (
    SecondTemperatureWarning,
    attention_layers,
    sharpen,
    unsharpen,
)
from sharpmax.hf.sharpen.interface import interface_attention, split_mask
from sharpmax.torch import watch
from tests.hf.families import build, inputs, output, tokens

SHARP = sharpmax.Constant(2.0)


def state(model):
    """Everything that sharpening touches, by value."""
    modules = {name: set(vars(module)) for name, module in model.named_modules()}
    hooks = [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()]
    return modules, hooks, getattr(model, "config", None) and model.config._attn_implementation


def test_leaving_restores_everything_and_an_exception_passes_on():
    model = build("llama")
    before = state(model)
    with sharpen(model, SHARP):
        assert state(model) != before
    assert state(model) == before
    with pytest.raises(ZeroDivisionError), sharpen(model, SHARP):
        raise ZeroDivisionError
    assert state(model) == before


def test_an_exception_ends_what_was_switched_on_inside_too():
    model, ids = build("llama"), tokens()
    before, plain = state(model), output(model, input_ids=ids)
    first = sharpen(model, SHARP)
    second = sharpen(model, SHARP)
    later = [sharpen(model, sharpmax.PAPER), sharpen(model, SHARP)]
    with pytest.raises(ZeroDivisionError), second:
        raise ZeroDivisionError
    first.restore()
    assert state(model) == before
    for one in later:
        one.restore()
    assert state(model) == before
    assert torch.equal(output(model, input_ids=ids), plain)


def test_a_model_whose_block_was_lost_can_be_unsharpened():
    model = build("llama")
    before = state(model)
    sharpen(model, SHARP)
    kept = sharpen(model, sharpmax.PAPER)
    sharpen(model.model.layers[1], SHARP)  # over the two others, in a part of it
    unsharpen(model)
    assert state(model) == before
    kept.restore()
    unsharpen(model)
    assert state(model) == before


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("family", ["llama", "albert"])
def test_a_copy_of_a_sharpened_model_can_be_unsharpened(family, copied):
    model, given = build(family), inputs(family)
    before, plain = state(model), output(model, **given)
    with sharpen(model, SHARP):
        twin, sharp = copied(model), output(model, **given)
        part = copied(attention_layers(model)[0].module)
    assert torch.equal(output(twin, **given), sharp)
    unsharpen(twin)
    assert state(twin) == before
    assert torch.equal(output(twin, **given), plain)
    with pytest.raises(RuntimeError, match="copy of a part"):
        unsharpen(part)


@pytest.mark.parametrize("shape", [(4,), (1, 4), (2, 4, 4)])
@pytest.mark.parametrize("wrap", [lambda p: p, sharpmax.detach, lambda p: sharpmax.PerHead((p,) * 4)])
def test_values_that_would_run_along_the_queries_are_refused(shape, wrap):
    """With as many queries as heads, four, they would fit, and be each query's instead of each head's."""
    model = build("llama")
    before = state(model)
    with pytest.raises(ValueError, match=r"an array of shape \(heads, 1\)"):
        sharpen(model, wrap(sharpmax.Constant(torch.ones(shape))))
    assert state(model) == before


def test_an_unknown_implementation_is_refused_before_any_work():
    with pytest.raises(ValueError, match="implementation must be one of"):
        sharpen(build("llama"), SHARP, implementation="fastest")


def test_a_block_that_was_left_is_not_entered_again_in_silence():
    on = sharpen(build("llama"), SHARP)
    with on:
        pass
    with pytest.raises(RuntimeError, match="its policy is off; call sharpen"), on:
        pass


def test_what_is_said_on_leaving_names_the_line_of_the_caller():
    model, ids = build("llama"), torch.zeros(1, 512, dtype=torch.long)
    for leave in (lambda on: on.__exit__(None, None, None), lambda on: on.restore()):
        on = sharpen(model, sharpmax.PAPER)
        model(ids)
        with pytest.warns(sharpmax.SilentPolicyWarning) as said:
            leave(on)
        assert [one.filename for one in said] == [__file__]


def test_a_failure_while_switching_on_restores_everything(monkeypatch):
    model = build("llama")
    before = state(model)
    monkeypatch.setitem(vars(model), "register_forward_pre_hook", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sharpen(model, SHARP)
    monkeypatch.undo()
    assert state(model) == before


def test_nested_policies_come_and_go_in_order():
    model, ids = build("llama"), tokens()
    plain = output(model, input_ids=ids)
    with sharpen(model, SHARP):
        outer = output(model, input_ids=ids)
        with sharpen(model, sharpmax.Constant(0.5)):
            inner = output(model, input_ids=ids)
        assert torch.equal(output(model, input_ids=ids), outer)
    assert not torch.equal(inner, outer)
    assert torch.equal(output(model, input_ids=ids), plain)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_nested_policies_are_released_in_any_order_that_is_asked_for(order):
    """An outer one is refused while an inner one is on; asked again afterwards it goes, and the model is plain."""
    model, given = build("llama"), inputs("llama")
    plain = output(model, **given)
    on = [sharpen(model, sharpmax.Constant(beta)) for beta in (2.0, 0.5, 3.0)]
    waiting = list(order)
    while waiting:
        asked = waiting.pop(0)
        if asked == max([asked, *waiting]):
            on[asked].restore()
        else:
            with pytest.raises(RuntimeError, match="restore the later one first"):
                on[asked].restore()
            waiting.append(asked)
    for one in on:  # a second time changes nothing
        one.restore()
    assert torch.equal(output(model, **given), plain)


def test_two_models_of_one_class_are_sharpened_apart():
    one, other, ids = build("llama"), build("llama"), tokens()
    plain = output(other, input_ids=ids)
    with sharpen(one, SHARP):
        assert torch.equal(output(other, input_ids=ids), plain)
        assert not torch.equal(output(one, input_ids=ids), plain)


def test_each_layer_and_head_gets_its_own_policy():
    model, ids = build("llama"), tokens()
    seen = {}
    heads = sharpmax.PerHead(tuple(sharpmax.Constant(1.0 + head) for head in range(4)))
    policy = sharpmax.PerLayer((sharpmax.Constant(1.0), heads))
    with sharpen(model, policy, observer=lambda layer, stats: seen.setdefault(layer, stats)):
        output(model, input_ids=ids)
    assert seen[0].inverse_temperature.unique().tolist() == [1.0]
    assert seen[1].inverse_temperature.mean((0, 2)).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_shared_module_is_as_many_layers_as_it_runs_also_through_a_part_of_the_model():
    model, ids, seen = AlbertForMaskedLM(build("albert").config).eval(), tokens(), []
    assert [layer.runs for layer in attention_layers(model)] == [2]
    policy = sharpmax.PerLayer((sharpmax.Constant(1.0), SHARP))
    with sharpen(model, policy, observer=lambda layer, stats: seen.append((layer, stats.inverse_temperature.max()))):
        output(model.albert, input_ids=ids)
        output(model, input_ids=ids)
        with pytest.raises(NotImplementedError, match="call the whole model"):
            model.albert.encoder(torch.zeros(1, 4, 16))
    assert seen == [(0, 1.0), (1, 2.0)] * 2


def test_a_pass_that_failed_leaves_nothing_to_the_next_one():
    model, ids = build("albert"), tokens()
    block = model.encoder.albert_layer_groups[0].albert_layers[0]
    with sharpen(model, sharpmax.PerLayer((sharpmax.Constant(1.0), SHARP))):
        fails = block.full_layer_layer_norm.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(ids)
        fails.remove()
        with pytest.raises(NotImplementedError, match="call the whole model"):  # of which of the two layers it is
            model.encoder(torch.zeros(1, 4, 16))
    model = build("llama")
    with sharpen(model, SHARP):
        fails = model.lm_head.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(ids)
        output(model.model, input_ids=ids)  # without a gradient: nothing is owed, and nothing is warned of


def test_a_policy_for_another_number_of_layers_is_refused():
    with pytest.raises(ValueError, match="holds 3 layers, and this model has 2"):
        sharpen(build("llama"), sharpmax.PerLayer((SHARP,) * 3))


@pytest.mark.parametrize("wrong", [None, 2.0, "no/such/card.json"])
def test_something_else_for_a_policy_is_refused(wrong):
    with pytest.raises((TypeError, OSError), match=r"policy|card"):
        sharpen(build("llama"), wrong)


def test_a_model_that_never_asks_is_not_passed_over_in_silence(monkeypatch):
    model = build("llama")
    attention = type(model.model.layers[0].self_attn)
    with sharpen(model, SHARP):
        monkeypatch.setattr(attention, "forward", lambda self, hidden_states, **_: (hidden_states, None))
        with pytest.raises(RuntimeError, match="without asking for attention once"):
            output(model, input_ids=tokens())
    with pytest.raises(NotImplementedError, match="no attention that can be reached"):
        sharpen(nn.Linear(2, 2), SHARP)


def test_without_its_mask_function_the_model_would_look_ahead(monkeypatch):
    """The trap: a name in the attention table alone gets no mask. Padded input shows it, and so does this test."""
    model, ids = build("llama"), tokens()
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    with sharpen(model) as _:
        right = output(model, input_ids=ids, attention_mask=mask)
        monkeypatch.delitem(type(_mask_table())._global_mapping, "sharpmax")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrong = output(model, input_ids=ids, attention_mask=mask)
    assert not torch.allclose(right[0, 5:], wrong[0, 5:])


def _mask_table():
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    return ALL_MASK_ATTENTION_FUNCTIONS


def test_hidden_keys_leave_the_logits_before_beta():
    lowest = torch.finfo(torch.float32).min
    mask, bias = split_mask(torch.tensor([[0.0, -1.5, lowest, -torch.inf, -100.0, -1e4, -9984.0]]))
    assert mask.tolist() == [[True, True, False, False, True, False, False]]
    assert bias.tolist() == [[0.0, -1.5, 0.0, 0.0, -100.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"output_attentions": True}, "observer"),
        ({"alibi": torch.zeros(1)}, "'alibi'"),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(argument, words):
    x = torch.zeros(1, 1, 2, 4)
    with pytest.raises(NotImplementedError, match=words):
        interface_attention(nn.Identity(), x, x, x, None, **argument)


def test_a_second_length_temperature_is_warned_of():
    model = build("llama", rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0})
    with pytest.warns(SecondTemperatureWarning, match="yarn"):
        sharpen(model, sharpmax.LengthScaled.log_n(16)).restore()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sharpen(model, sharpmax.Constant(1.1)).restore()


def test_gradients_reach_the_policy_and_checkpointing_changes_nothing():
    ids = tokens()

    def gradients(checkpointing):
        model = build("llama").train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        parameters = [torch.zeros(4, 1, requires_grad=True) for _ in range(2)]
        policy = sharpmax.PerLayer(tuple(sharpmax.LogLinear(c=p) for p in parameters))
        with sharpen(model, policy):
            model(ids, labels=ids).loss.backward()
        return [p.grad for p in parameters] + [model.model.layers[0].self_attn.q_proj.weight.grad]

    plain, checkpointed = gradients(False), gradients(True)
    assert all(g.abs().min() > 0 for g in plain[:2])
    for one, other in zip(plain, checkpointed, strict=True):
        torch.testing.assert_close(one, other)


def test_beside_peft():
    import peft

    model, ids = build("llama"), tokens()
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)).eval()
    plain = output(adapted, input_ids=ids)
    with sharpen(adapted) as sharpened:
        torch.testing.assert_close(output(adapted, input_ids=ids), plain, rtol=1e-4, atol=1e-4)
        assert sharpened.calls == 2
    with sharpen(adapted, SHARP):
        assert not torch.allclose(output(adapted, input_ids=ids), plain)


@pytest.mark.filterwarnings("ignore")  # of the compiler, on itself
def test_a_solved_beta_compiles_whole_with_a_cache_that_the_graph_makes():
    torch.compiler.reset()
    model, ids = build("llama"), tokens(length=12)
    whole = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad(), sharpen(model, sharpmax.EntropyTarget(0.5)):
        torch.testing.assert_close(whole(ids, use_cache=True).logits, model(ids).logits)


@pytest.mark.filterwarnings("ignore")  # of the compiler, on itself
def test_under_torch_compile():
    model, ids = build("llama"), tokens()
    compiled = torch.compile(model, backend="eager")
    plain = output(model, input_ids=ids)
    with sharpen(model, SHARP):
        expected = output(model, input_ids=ids)
    torch.testing.assert_close(output(compiled, input_ids=ids), plain)
    with sharpen(compiled, SHARP):
        torch.testing.assert_close(output(compiled, input_ids=ids), expected)
    torch.testing.assert_close(output(compiled, input_ids=ids), plain)


def test_vision_and_speech_statistics_are_of_every_layer():
    for family, layers in (("vit", 2), ("swin", 4), ("whisper", 6)):
        model, seen = build(family), []
        with sharpen(model, observer=lambda layer, stats, seen=seen: seen.append(layer)):
            output(model, **inputs(family))
        assert sorted(seen) == list(range(layers))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_card_with_a_value_a_head_does_what_the_tensors_did(family, tmp_path):
    model, ids = build(family), tokens()
    columns = [torch.tensor([[0.1], [0.2], [0.3], [0.4]]) * sign for sign in (1, -1)]
    learned = sharpmax.PerLayer(tuple(sharpmax.LogLinear(a=column, c=column) for column in columns))
    learned.save(tmp_path / "card.json")
    for observer in (None, lambda layer, stats: None):
        with sharpen(model, learned, observer=observer):
            expected = output(model, input_ids=ids)
        with sharpen(model, tmp_path / "card.json", observer=observer):
            torch.testing.assert_close(output(model, input_ids=ids), expected)


def test_a_part_of_a_model_is_sharpened_alone():
    """Its config is every layer's: the others attend plainly."""
    model, given = build("llama"), inputs("llama")
    plain = output(model, **given)
    with sharpen(model, sharpmax.PerLayer((sharpmax.Constant(1.0), SHARP))):
        expected = output(model, **given)
    with sharpen(model.model.layers[1], SHARP):
        torch.testing.assert_close(output(model, **given), expected)
    assert torch.equal(output(model, **given), plain)


def test_output_attentions_is_refused_before_anything_runs():
    model, ids = build("llama"), tokens()
    with sharpen(model, SHARP) as sharpened:
        for call in (model, model.model):
            with pytest.raises(NotImplementedError, match=r"forms no attention weights.*observer"):
                call(ids, output_attentions=True)
        with pytest.raises(NotImplementedError, match="forms no attention weights"):
            model.generate(ids, max_new_tokens=1, output_attentions=True, return_dict_in_generate=True)
        assert sharpened.calls == 0
    assert len(model(ids, output_attentions=True).attentions) == 2


@pytest.mark.parametrize("offload", ["cpu", "disk"])
def test_a_value_per_head_follows_an_offloaded_model(offload, tmp_path):
    import accelerate

    model, ids = build("llama"), tokens()
    sharpmax.LogLinear(c=((0.1,), (0.2,), (0.3,), (0.4,))).save(tmp_path / "card.json")
    with sharpen(model, tmp_path / "card.json"):
        expected = output(model, input_ids=ids)
    if offload == "cpu":
        accelerate.cpu_offload(model, torch.device("cpu"))
    else:
        accelerate.disk_offload(model, tmp_path / "weights", torch.device("cpu"))
    assert model.model.layers[0].self_attn.q_proj.weight.device.type == "meta"
    with sharpen(model, tmp_path / "card.json"):
        assert torch.equal(output(model, input_ids=ids), expected)


@pytest.mark.filterwarnings("ignore")  # of the compiler, on itself
@pytest.mark.parametrize("family", ["llama", "albert"])
def test_a_compiled_model_is_compiled_once(family):
    model, given = build(family), inputs(family)
    with sharpen(model, sharpmax.PAPER):
        expected = output(model, **given)
    torch.compiler.reset()
    counters = torch._dynamo.utils.counters
    compiled = torch.compile(model, backend="eager")
    with sharpen(compiled, sharpmax.PAPER):
        torch.testing.assert_close(output(compiled, **given), expected)
        graphs = counters["stats"]["unique_graphs"]
        for _ in range(4):
            output(compiled, **given)
        assert counters["stats"]["unique_graphs"] == graphs


def test_a_layer_that_changes_inside_the_block_is_not_silent():
    def replace(model):
        model.model.layers[1].self_attn = copy.deepcopy(build("llama").model.layers[1].self_attn)

    def add(model):
        model.model.layers.append(build("llama").model.layers[0])

    for change in (replace, add):
        for whole in (True, False):  # or the model inside it, as whoever needs hidden states calls it
            model, ids = build("llama"), tokens()
            with sharpen(model, SHARP):
                change(model)
                with pytest.raises(RuntimeError, match=r"of this LlamaForCausalLM was replaced, added or removed"):
                    output(model if whole else model.model, input_ids=ids)
    model = build("llama")
    with sharpen(model, SHARP):
        expected = output(model, input_ids=ids)
        model.model.layers[0].self_attn = torch.nn.Sequential(model.model.layers[0].self_attn)  # wrapped: it attends
        model.model.layers[0].self_attn.forward = model.model.layers[0].self_attn[0].forward
        assert torch.equal(output(model, input_ids=ids), expected)


@pytest.mark.parametrize("on", [lambda m: sharpen(m, sharpmax.Constant(2.0)), watch])
def test_an_implementation_that_is_set_inside_the_block_is_named(on):
    model = build("llama")
    with on(model):
        model.set_attn_implementation("eager")
        for called in (model, model.model):
            with pytest.raises(RuntimeError, match="was changed while it is sharpened or watched"):
                called(input_ids=tokens())


def test_what_cannot_be_told_or_sharpened_is_refused_at_the_call():
    model = build("llama")
    before = state(model)
    for name in ("observer", "probe"):
        with pytest.raises(TypeError, match=f"expected {name} to be a function, got 3"):
            sharpen(model, sharpmax.PAPER, **{name: 3})
    assert state(model) == before
    for call in (attention_layers, unsharpen):
        with pytest.raises(TypeError, match="expected a torch module, got dict"):
            call({})
