"""Certificates of models: no row of a real forward pass spreads further than proved, and the bound is not idle."""

from pathlib import Path

import numpy as np
import pytest
import torch

import sharpmax
from sharpmax.dispersion.certificates import Certificate
from sharpmax.dispersion.forecast import Rehearsal
from sharpmax.hf import LoadedModel, attention_layers, load, sharpen
from sharpmax.hf.diagnosis.certify import PLAIN, certify
from sharpmax.hf.diagnosis.probe import RowProbe
from sharpmax.hf.diagnosis.projections import proved_spreads
from sharpmax.hf.sharpen.sidecar import OtherModelWarning, card_for
from sharpmax.hf.verbs import certify as command
from sharpmax.hf.verbs.certify import CertificationResult
from sharpmax.hf.verbs.diagnose import diagnose
from tests.hf.families import DECODERS, ENCODERS, VISION, build, inputs, output
from tests.hf.tiny import tiny
from tests.places import ROOT

TEXT = "Attention that stays sharp at any size, whatever the length of the text it reads. " * 3
LICENSE = (ROOT / "LICENSE").read_text(encoding="utf-8")


def assert_within(certificates):
    assert certificates
    for head in certificates:
        assert 0 < head.measured_spread <= head.proved_spread * (1 + 1e-5), head


def disturb(model):
    """Give the model gains and biases that are not what they start as."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                generator = torch.Generator().manual_seed(len(name))
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.5)


@pytest.mark.parametrize("family", [*DECODERS, *ENCODERS])
def test_every_row_spreads_within_the_proved_bound(family):
    loaded = tiny(family)
    disturb(loaded.model)
    certificates = certify(loaded, TEXT, length=128)
    assert len(certificates) == 8
    assert_within(certificates)


@pytest.mark.parametrize("family", sorted(set(VISION) - {"swin"}))
def test_every_row_of_an_image_spreads_within_the_proved_bound(family):
    model = build(family, **({"vision_use_head": False} if family == "siglip" else {}))
    disturb(model)
    probe = RowProbe(torch.arange, lambda _: 1)
    with sharpen(model, probe=probe):
        output(model, **inputs(family))
    measured, proved = probe.dispersion([]).most_spread, proved_spreads(model)
    assert measured.shape == proved.shape == (2, 4)
    assert (measured > 0).all()
    assert (measured <= proved * (1 + 1e-5)).all()


@pytest.mark.parametrize(
    "family", sorted({*DECODERS, *ENCODERS} - {"gemma2", "gemma3"})
)  # a cap, and norms of 1 + weight
def test_the_bound_is_of_this_layers_own_weights(family):
    """Twice the queries and twice the keys of the last layer: four times its spread, and no other's."""
    loaded = tiny(family)
    before = proved_spreads(loaded.model)
    last = attention_layers(loaded.model)[-1].module
    with torch.no_grad():
        for parameter in last.parameters():
            parameter.mul_(2.0)
    after = proved_spreads(loaded.model)
    np.testing.assert_allclose(after[-1] / before[-1], 4, rtol=1e-6)
    if family != "albert":  # whose layers are one
        np.testing.assert_array_equal(after[0], before[0])


def test_a_widened_embedding_counts():
    """ELECTRA maps narrower embeddings to its width before its first layer."""
    loaded = tiny("electra", embedding_size=16)
    disturb(loaded.model)
    assert_within(certify(loaded, TEXT, length=128))


def test_an_adapter_beside_the_projection_counts():
    import peft

    loaded = tiny("llama")
    before = proved_spreads(loaded.model)
    options = peft.LoraConfig(target_modules=["q_proj", "k_proj"], init_lora_weights=False)
    adapted = LoadedModel("adapted", peft.get_peft_model(loaded.model, options).eval(), loaded.tokenizer)
    certificates = certify(adapted, TEXT, length=128)
    assert_within(certificates)
    apart = proved_spreads(adapted.model)
    assert not np.allclose(apart, before, rtol=1e-3)
    np.testing.assert_allclose(proved_spreads(adapted.model.merge_and_unload()), apart, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "text"), [("minilm", LICENSE), ("rxnmapper", "CC(=O)Cl.OCC>>CCOC(C)=O" * 9)], ids=["minilm", "rxnmapper"]
)
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
    assert len(certificates) == 4
    for head in certificates:
        assert 0.9 * head.proved_spread <= head.measured_spread <= head.proved_spread * (1 + 1e-5)


def test_yarn_counts():
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    plain, longer = (proved_spreads(tiny("llama", **c).model) for c in ({}, {"rope_parameters": rope}))
    np.testing.assert_allclose(longer / plain, (0.1 * np.log(4) + 1) ** 2)


def test_yarn_counts_in_a_family_with_one_for_each_kind_of_layer():
    plain = {"rope_type": "default", "rope_theta": 1e4}
    longer = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    kinds = ({"sliding_attention": plain, "full_attention": full} for full in (plain, longer))
    before, after = (proved_spreads(tiny("gemma3", rope_parameters=kind).model) for kind in kinds)
    np.testing.assert_allclose(after / before, (0.1 * np.log(4) + 1) ** 2)


def test_a_softcap_is_the_bound():
    assert proved_spreads(tiny("gemma2", attn_logit_softcapping=3.0).model).max() <= 6.0


def test_a_policy_multiplies_and_an_unbounded_one_is_refused():
    loaded = tiny("llama")
    plain, sharp = certify(loaded)[0], certify(loaded, policy=sharpmax.Constant(2.0))[0]
    assert sharp.log10_sizes()["0.5"] > plain.log10_sizes()["0.5"]
    with pytest.raises(ValueError, match="without bound"):
        certify(loaded, policy=sharpmax.LengthScaled.ssmax(0.4))


def test_with_a_policy_the_text_is_read_under_it():
    loaded, policy = tiny("llama"), sharpmax.Constant(3.0)
    plain, sharp = ([h.measured_spread for h in certify(loaded, TEXT, length=64, policy=p)] for p in (PLAIN, policy))
    assert sharp[:4] == plain[:4]  # what the first layer reads is the same
    assert sharp[4:] != plain[4:]
    assert_within(certify(loaded, TEXT, length=64, policy=policy))


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (sharpmax.PerLayer((PLAIN,) * 3), "holds 3 layers, and this model has 2"),
        (sharpmax.PerHead((PLAIN,) * 3), "layer 0 holds 3 heads, and this layer has 4"),
        (
            sharpmax.PerLayer((PLAIN, sharpmax.LogLinear(a=((0.1,), (0.2,))))),
            "layer 1 holds 2 heads, and this layer has 4",
        ),
    ],
)
def test_a_policy_of_another_models_shape_is_refused(policy, words):
    for text in (None, TEXT):
        with pytest.raises(ValueError, match=words):
            certify(tiny("llama"), text, length=64, policy=policy)


def test_a_policy_with_a_value_a_head_is_certified():
    policy = sharpmax.PerLayer((sharpmax.LogLinear(a=((0.1,), (0.2,), (0.3,), (0.4,))), PLAIN))
    assert_within(certify(tiny("llama"), TEXT, length=64, policy=policy))


def test_a_card_of_another_model_is_warned_of(tmp_path):
    PLAIN.save(tmp_path / "card.json", model="smollm2")
    assert card_for("smollm2", tmp_path / "card.json").policy == PLAIN
    assert card_for("copies/smollm2/", tmp_path / "card.json").policy == PLAIN
    with pytest.warns(OtherModelWarning, match="fitted on smollm2, and is used on minilm"):
        card_for("minilm", tmp_path / "card.json")


@pytest.mark.filterwarnings("ignore::sharpmax.hf.sharpen.sidecar.OtherModelWarning")
def test_a_card_for_more_layers_is_no_card_of_this_model(tmp_path):
    card = ROOT / "results" / "calibration" / "smollm2" / "card.json"
    with pytest.raises(ValueError, match="holds 30 layers, and this model has 6"):
        command.certify("minilm", card=card, out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_length_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "text").write_text("short")
    with pytest.raises(ValueError, match="positions for 512 tokens, got a length of 99999999"):
        command.certify("minilm", length=99999999, out=tmp_path / "runs")
    with pytest.raises(ValueError, match="tokens, fewer than the length 400"):
        command.certify("minilm", text=tmp_path / "text", length=400, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("family", ["swin", "bart", "t5", "whisper"])
def test_an_unknown_family_is_refused(family):
    with pytest.raises(NotImplementedError, match=f"no certificate for {family}: its norm layers are not known"):
        proved_spreads(build(family))


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("bert", {"is_decoder": True, "add_cross_attention": True}, r"crossattention.*keys come from another model"),
        ("gpt2", {"add_cross_attention": True}, r"crossattention.*keys come from another model"),
        ("opt", {"do_layer_norm_before": False}, "normalises after attention"),
        ("albert", {"num_hidden_groups": 2}, "several blocks"),
        ("siglip", {}, "no certificate for MultiheadAttention"),
    ],
)
def test_a_layer_that_nothing_known_stands_in_front_of_is_refused(family, changes, words):
    with pytest.raises(NotImplementedError, match=words):
        proved_spreads(build(family, **changes))


def test_an_image_model_cannot_be_measured_on_text():
    with pytest.raises(NotImplementedError, match="reads pixel_values"):
        certify(LoadedModel("vit", build("vit"), None), TEXT)


def test_heads_that_text_does_not_reach_are_proved_and_not_measured():
    heads = [Certificate(0, 0, 2.0), Certificate(1, 0, 4.0, measured_spread=1.0)]
    metrics = {"heads": [h.to_json() for h in heads], "largest_share_of_bound": 0.25, "length": 64}
    said = CertificationResult(metrics, Path(), "tiny").summary()
    assert said.startswith("seen on 64 tokens: ")
    assert said.index("proved from the weights") > said.index("seen on")
    assert "proved from the weights: spread 2.0 to 4.0" in said
    assert "seen on the text: spread 1.0 to 1.0" in said


def test_heads_that_are_expected_to_hold_on_are_told_so():
    heads = [Certificate(0, head, 2.0, measured_spread=1.0).to_json() for head in range(3)]
    for head, size in zip(heads, ("never", "never", 3.0), strict=True):
        head["expected_log10_n"] = {"0.5": size}
    metrics = {"heads": heads, "largest_share_of_bound": 0.5, "length": 64}
    said = CertificationResult(metrics, Path(), "tiny").summary()
    assert "of 3 heads that give one token half of their weight at 64 tokens, most still do at a million times" in said


def test_what_is_expected_stands_beside_what_is_proved(tmp_path, monkeypatch):
    monkeypatch.setattr(Rehearsal, "believed", True)
    result = command.certify(tiny("llama"), length=256, text=None, out=tmp_path, quiet=True)
    assert result.metrics["expectation"]["shown"] == "law"
    for head in result["heads"]:
        expected = head["expected_log10_n"]["0.01"]
        assert expected == "never" or expected <= head["proved_log10_n"]["0.01"] + 1e-6, "no law outlives its proof"
    assert any(row[0] == "expected" for block in result.page().blocks for row in getattr(block, "rows", ()))


@pytest.mark.parametrize(
    ("length", "said"), [(256, "does not pass its rehearsal"), (128, "takes a text of 256 tokens")]
)
def test_a_law_that_is_not_rehearsed_or_fails_gives_way_to_persistence(tmp_path, monkeypatch, length, said):
    monkeypatch.setattr(Rehearsal, "believed", False)
    result = command.certify(tiny("llama"), length=length, text=None, out=tmp_path, quiet=True)
    assert result.metrics["expectation"]["shown"] == "persistence"
    assert said in result.summary()
    assert not any("expected_log10_n" in head for head in result["heads"])
    assert not any(row[0] == "expected" for block in result.page().blocks for row in getattr(block, "rows", ()))


def silenced(family="llama"):
    """Return a tiny model whose attention projects everything to zero."""
    loaded = tiny(family)
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if "proj" in name:
                parameter.zero_()
    return loaded


def test_projections_of_zero_are_certified_and_called_uniform(tmp_path):
    (tmp_path / "text").write_text(TEXT)
    found = command.certify(silenced(), text=tmp_path / "text", length=32, out=tmp_path)
    assert found.metrics["largest_share_of_bound"] == 0
    said = diagnose(silenced(), texts=[tmp_path / "text"], lengths=[16, 32], rows=8, out=tmp_path).summary()
    assert "look first" not in said
    assert "no head is sharp at 16 tokens" in said


def test_a_spread_that_its_weights_do_not_allow_is_no_proof():
    from peft import PrefixTuningConfig, get_peft_model

    prefixed = get_peft_model(
        build("llama", max_position_embeddings=256), PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    ).eval()
    with torch.no_grad():
        for name, parameter in prefixed.named_parameters():
            parameter.mul_(1000 if "prompt" in name else 1)
    with pytest.raises(NotImplementedError, match=r"no certificate for prefixed: .* layer 0.*a learned prefix"):
        certify(LoadedModel("prefixed", prefixed, tiny("llama").tokenizer), TEXT, length=32)
