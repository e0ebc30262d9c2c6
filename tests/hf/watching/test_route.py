"""Any transformers model is watched as it trains: packed, padded, checkpointed, compiled, sharpened; and restored."""

import numpy as np
import pytest
import torch

import sharpmax
from sharpmax.hf import Attention, attention_layers, sharpen, unsharpen
from sharpmax.hf.finetune.packing import lay_out, packing
from sharpmax.runs.watched import read_record
from sharpmax.torch import AttentionWarning, Guard, LogitGrowthWarning, QKClip, watch
from tests.hf.families import FAMILIES, build, inputs, tokens
from tests.marks import slow


def readings(model, *passes, **options):
    """Return what a watch reads of forward passes in training mode."""
    model.train()
    torch.manual_seed(0)  # of what a family drops
    with watch(model, **options) as watched:
        for given in passes:
            model(**given)
        return watched.read()


def observed(model, **given):
    """Return the maxima and mean entropies that an observer of `sharpen` is told."""
    found = {}
    torch.manual_seed(0)
    with sharpen(model, observer=lambda layer, stats: found.setdefault(layer, stats)), torch.no_grad():
        model(**given)
    stats = [found[layer] for layer in sorted(found)]
    seen = [s.count > 0 for s in stats]
    maxima = [s.maximum.amax((0, 2)).numpy() for s in stats]
    means = [((s.entropy * c).sum((0, 2)) / c.sum((0, 2))).numpy() for s, c in zip(stats, seen, strict=True)]
    return np.concatenate(maxima), np.concatenate(means)


QUICK = ("llama", "gemma3", "bert")


@pytest.mark.parametrize("family", [*QUICK, *slow(*(family for family in FAMILIES if family not in QUICK))])
def test_every_family_is_read_as_an_observer_sees_it(family):
    model, given = build(family).double().train(), inputs(family)
    given = {name: x.double() if x.is_floating_point() else x for name, x in given.items()}
    maximum, entropy = observed(model, **given)
    before = [p.detach().clone() for p in model.parameters()]
    reading = readings(model, given)
    np.testing.assert_allclose(reading.maximum, maximum, rtol=1e-9)
    np.testing.assert_allclose(reading.entropy, entropy, rtol=1e-9, atol=1e-9)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all("sharpmax_site" not in part.__dict__ for part in model.modules())


def test_a_watched_model_computes_what_the_plain_one_does():
    model = build("llama").train()
    model.set_attn_implementation("sdpa")
    given = {"input_ids": tokens(), "labels": tokens()}
    plain = model(**given)
    with watch(model) as watched:
        seen = model(**given)
        assert watched.read().rows.tolist() == [48] * 8
    assert torch.equal(seen.loss, plain.loss)
    assert torch.equal(seen.logits, plain.logits)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.filterwarnings("ignore:.*use_cache.*")
def test_gradient_checkpointing_counts_once(reentrant):
    model = build("llama").train()
    plain = readings(model, {"input_ids": tokens()})
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    with watch(model) as watched:
        model(input_ids=tokens(), labels=tokens(), use_cache=False).loss.backward()
        reading = watched.read()
    assert reading.rows.tolist() == plain.rows.tolist()
    np.testing.assert_array_equal(reading.maximum, plain.maximum)


def test_no_row_sees_a_key_of_padding():
    """A query of padding still attends, to real keys, and is counted: nothing tells it from the others."""
    model = build("llama").double()
    given = {"input_ids": tokens(), "attention_mask": torch.ones_like(tokens())}
    whole = readings(model, given)
    given["attention_mask"][1, 15:] = 0
    padded, (maximum, entropy) = readings(model, given), observed(model, **given)
    assert padded.rows.tolist() == [48] * 8
    np.testing.assert_allclose(padded.maximum, maximum, rtol=1e-9)
    np.testing.assert_allclose(padded.entropy, entropy, rtol=1e-9)
    assert (padded.entropy[:4] < whole.entropy[:4]).all()


@pytest.mark.parametrize("how", ["flash", "batches"])
def test_packed_rows_are_those_of_each_example(how):
    sizes = (24, 9, 15)
    texts = [tokens(seed, 1, size) for seed, size in enumerate(sizes)]
    places = torch.cat([torch.arange(size) for size in sizes])[None]
    row = torch.cat(texts, dim=1)
    model = build("llama")
    apart = readings(model, *({"input_ids": text} for text in texts))
    model.train()
    with watch(model) as watched:
        if how == "batches":
            with packing(model) as shared:
                shared.layout = lay_out(sizes)
                model(input_ids=row, position_ids=places)
        else:
            ends = torch.tensor(np.cumsum((0, *sizes)), dtype=torch.int32)
            lengths = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 24, "max_length_k": 24}
            model(input_ids=row, position_ids=places, attention_mask=None, **lengths)
        packed = watched.read()
    assert packed.rows.tolist() == apart.rows.tolist() == [48] * 8
    np.testing.assert_allclose(packed.maximum, apart.maximum, rtol=1e-5)
    np.testing.assert_allclose(packed.entropy, apart.entropy, rtol=1e-5)
    np.testing.assert_allclose(packed.first_share, apart.first_share, rtol=1e-4)


def test_a_sharpened_model_keeps_its_policy():
    model = build("llama").train()
    plain = readings(model, {"input_ids": tokens()})
    with sharpen(model, sharpmax.Constant(2.0)):
        sharp = model(input_ids=tokens()).logits
        with watch(model) as watched:
            assert torch.equal(model(input_ids=tokens()).logits, sharp)
            np.testing.assert_array_equal(watched.read().maximum[:4], plain.maximum[:4])  # before sharpening
        assert torch.equal(model(input_ids=tokens()).logits, sharp)
    with watch(model), pytest.raises(RuntimeError, match="watched already"):
        watch(model)


def test_a_model_that_is_sharpened_after_it_was_watched_is_still_counted_and_clipped(tmp_path):
    model = build("llama").train()
    with sharpen(model, sharpmax.Constant(2.0)):
        expected = readings(model, {"input_ids": tokens()})
    weight = model.model.layers[0].self_attn.q_proj.weight
    before = weight.detach().clone()
    with QKClip(model, threshold=1e-3, guard=Guard(None, None, maximum=1e-3), record=tmp_path) as clip:
        with sharpen(model, sharpmax.Constant(2.0)):
            model(input_ids=tokens())
            np.testing.assert_array_equal(clip.watch.read().maximum, expected.maximum)
            with pytest.warns(LogitGrowthWarning):
                clip.step()
            assert not torch.equal(weight, before)
            with pytest.raises(RuntimeError, match="leave that block first"):
                clip.close()
        model(input_ids=tokens())
        clip.step()
    assert [line["step"] for line in read_record(tmp_path).steps] == [0, 1]
    assert all("sharpmax_site" not in part.__dict__ for part in model.modules())


def test_a_part_is_not_counted_as_layers_of_the_whole():
    model = build("t5").train()
    with sharpen(model.decoder, sharpmax.Constant(2.0)), pytest.raises(RuntimeError, match="watch that part"):
        watch(model)
    with watch(model), pytest.raises(RuntimeError, match="part of a model that is watched"):
        sharpen(model.decoder, sharpmax.Constant(2.0))
    assert all("sharpmax_site" not in part.__dict__ for part in model.modules())


def test_a_step_in_which_nothing_was_counted_is_said_once():
    model = build("llama").train()
    with sharpen(model, sharpmax.Constant(2.0)):
        watched = watch(model)
    model(input_ids=tokens())
    with pytest.warns(AttentionWarning, match="no attention was counted in step 0"):
        watched.step()
    model(input_ids=tokens())
    watched.step()
    watched.close()


def test_our_slot_is_watched_and_attends_as_before():
    class Mine(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = Attention()

        def forward(self, x):
            return self.attend(x, x, x, is_causal=True)

    x = torch.randn(1, 2, 6, 4)
    mine = Mine()
    plain = mine(x)
    with watch(mine) as watched:
        assert torch.equal(mine(x), plain)
        assert watched.read().rows.tolist() == [6, 6]


@pytest.mark.slow
@pytest.mark.parametrize("compiled", ["whole", "layers"])
@pytest.mark.filterwarnings("ignore")  # of the compiler, on itself
def test_a_compiled_model_is_watched(compiled):
    torch.compiler.reset()
    model = build("llama").train()
    expected = readings(model, {"input_ids": tokens()})
    model.gradient_checkpointing_enable({"use_reentrant": False}) if compiled == "layers" else None
    with watch(model, every=2) as watched:
        runs = model
        if compiled == "whole":
            runs = torch.compile(model, backend="aot_eager")
        else:
            for layer in model.model.layers:
                layer.compile(backend="aot_eager")
        rows = []
        watched.listeners.append(lambda step, reading: rows.append((step, reading.rows.tolist(), reading.maximum)))
        for _ in range(3):
            runs(input_ids=tokens(), labels=tokens(), use_cache=False).loss.backward()
            watched.step()
    assert [(step, count) for step, count, _ in rows] == [(0, [48.0] * 8), (2, [48.0] * 8)]
    np.testing.assert_allclose(rows[0][2], expected.maximum, rtol=1e-5)


NORMED = ("qwen3", "gemma3")


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox", "phi3", "bert", "modernbert", *NORMED])
def test_a_clip_brings_the_first_layer_of_each_family_to_the_threshold(family):
    kinds = {"layer_types": ["full_attention"]} if family == "gemma3" else {}
    model, given = build(family, num_hidden_layers=1, **kinds).train(), inputs(family)
    before = readings(model, given).maximum
    threshold = float(np.sort(before)[-2:].mean())
    with QKClip(model, threshold) as clip:
        model(**given)
        clip.step()
    after = readings(model, given).maximum
    assert after.max() <= threshold * (1 + 1e-5)
    if family in NORMED:  # one weight for all heads of the layer
        np.testing.assert_allclose(after, before * threshold / before.max(), rtol=1e-4)
    else:
        top = before.argmax()
        assert after[top] == pytest.approx(threshold, rel=1e-5)
        np.testing.assert_array_equal(np.delete(after, top), np.delete(before, top))


def test_a_module_that_serves_many_layers_is_clipped_by_the_highest():
    model, given = build("albert").train(), inputs("albert")
    assert attention_layers(model)[0].runs == 2
    before = readings(model, given).maximum
    with QKClip(model, float(before[:4].min()) / 2) as clip:
        model(**given)
        clip.step()
    assert (readings(model, given).maximum[:4] <= before[:4].min() / 2 * (1 + 1e-5)).all()


def test_a_watch_whose_model_was_unsharpened_can_be_closed():
    model = build("llama")
    watched = watch(model)
    unsharpen(model)
    watched.close()
    with watch(model):
        assert model.config._attn_implementation == "sharpmax"
    assert model.config._attn_implementation == "eager"


def test_a_sink_is_not_the_largest_logit():
    """QK-clip would scale queries and keys for ever, and no logit of theirs would fall."""
    model, given = build("gpt_oss"), inputs("gpt_oss")
    before = readings(model, given).maximum
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.fill_(20.0)
    after = readings(model, given).maximum
    np.testing.assert_array_equal(after[:4], before[:4])  # of the first layer, whose input no sink changes
    assert after.max() < 20


def test_an_adapter_is_refused_by_name():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(build("llama"), LoraConfig(target_modules=["q_proj"], r=2)).train()
    clip = QKClip(model, 1e-3)
    model(input_ids=tokens())
    with pytest.raises(NotImplementedError, match=r"self_attn cannot be clipped per head: an adapter"):
        clip.step()
    clip.close()
