"""Models by name: a licence that is read before it is used, folders that hold a whole one, weights that are finite."""

import json
import os
import re
import shutil
import time

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from sharpmax.cli import main
from sharpmax.hf.models import load as loading
from sharpmax.hf.models.load import LoadedModel, load, must_be_finite
from sharpmax.runs import progress
from tests.hf.families import build
from tests.hf.tiny import tiny


def test_a_restricted_licence_must_be_accepted(tmp_path, monkeypatch):
    monkeypatch.setenv("SHARPMAX_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=r"non-commercial.*--accept-license"):
        load("iglm")


def test_a_fetch_has_a_bar_of_megabytes_and_then_says_that_it_restores(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SHARPMAX_CACHE", str(tmp_path))
    monkeypatch.setattr(progress, "SILENT", 0.05)

    def fetch(builtin, convert, downloaded):
        downloaded(builtin.size // 3)
        time.sleep(0.6)
        convert(builtin, tmp_path, tmp_path / "made")
        raise OSError("enough")

    monkeypatch.setattr(loading, "fetch", fetch)
    monkeypatch.setattr(loading, "convert", lambda *_: time.sleep(0.6))
    with pytest.raises(OSError, match="enough"), progress.shown():
        load("rxnmapper")
    said = capsys.readouterr().err
    assert "\nfetching rxnmapper, MB 1 of 3, " in said
    assert "\nrestoring the weights, " in said  # with no bar of the fetch before it: that has ended


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"neither a built-in model \(smollm2, minilm"):
        load("no such model")


def test_a_folder_without_a_whole_model_and_its_tokenizer_is_named(tmp_path):
    def assert_refused(reason):
        with pytest.raises(ValueError, match=f"does not hold a whole model: .*{reason}"):
            load(str(tmp_path))

    assert_refused("model_type")
    build("llama").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"no tokenizer that can be read: save that there too, tokenizer\."):
        load(str(tmp_path))
    config = tmp_path / "config.json"
    saved = config.read_text()
    for name, other in (("vocab_size", 71), ("hidden_size", 64)):
        config.write_text(re.sub(rf'"{name}": \d+', f'"{name}": {other}', saved))
        with pytest.raises(ValueError, match=r"a config\.json of another model than its weights: .* is \(64, 32\) in"):
            load(str(tmp_path))
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert_refused("header")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    build("llama").save_pretrained(folder)
    return folder


def copied(whole, tmp_path, change):
    """Return a copy of the folder whose config has these fields, or is this text."""
    shutil.copytree(whole, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(change if isinstance(change, str) else json.dumps(json.loads(file.read_text()) | change))
    return tmp_path / "model"


GPTQ = {"quant_method": "gptq", "bits": 4}
UNUSABLE = [
    ({"num_attention_heads": 0}, "ZeroDivisionError"),
    ({"num_attention_heads": -4}, "negative dimension"),
    ({"num_attention_heads": "four"}, "expected int, got str"),
    ({"num_key_value_heads": 0}, "ZeroDivisionError"),
    ({"num_hidden_layers": 10**12}, r"num_hidden_layers of 1e\+12, more than the 10,000"),
    ({"text_config": {"num_layers": 10**12}}, r"num_layers of 1e\+12"),
    ({"num_labels": 10**9}, "num_labels"),
    ({"dtype": "float99"}, "float99"),
    ({"architectures": ["LlamaConfig"]}, "'LlamaConfig' is not a model"),
    ({"architectures": ["logging"]}, "from_pretrained"),
    ({"architectures": ["LlamaForCasualLM"]}, "has no class 'LlamaForCasualLM', its architecture"),
    ({"architectures": 5}, "not iterable"),
    ({"architectures": [["x"]]}, "must be string"),
    ({"quantization_config": GPTQ}, "pip install optimum"),
    ({"quantization_config": "x"}, "AttributeError"),
    ({"attn_implementation": "flash_attention_2"}, "FlashAttention2"),
    ({"hidden_act": "zz"}, "KeyError: 'zz'"),
    ({"rope_scaling": {"rope_type": "zz"}}, "KeyError: 'zz'"),
    ({"pad_token_id": 10**9}, "Padding_idx"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps of NaN"),
    ({"id2label": 3}, "AttributeError"),
    ({"model_type": ["llama"]}, "unhashable"),
    ({"model_type": "zz", "auto_map": {"AutoConfig": "evil.Config"}}, "custom code"),
    ("[" * 200_000, "config.json is not a model's config: it is nested"),
    ("[]", "config.json is not a model's config: expected an object, got list"),
    ("{", "config.json is not a model's config: no JSON at line 1"),
]


@pytest.mark.parametrize(("change", "reason"), UNUSABLE)
def test_a_config_that_cannot_be_used_is_one_line(change, reason, whole, tmp_path, capsys):
    folder = copied(whole, tmp_path, change)
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    assert main(["certify", str(folder), "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(rf"sharpmax: error: the folder '.*' does not hold a whole model: .*{reason}.*\n", error)


@pytest.mark.parametrize("file", ["../whole/model.safetensors", "/etc/passwd", 3])
def test_an_index_of_weights_names_files_of_its_own_folder(file, whole, tmp_path):
    folder = copied(whole, tmp_path, {})
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"lm_head.weight": file}}))
    with pytest.raises(ValueError, match=rf"index\.json names {re.escape(repr(file))}, expected a file inside"):
        load(str(folder))


def test_positions_that_are_not_finite_are_refused():
    model = build("llama")
    model.model.rotary_emb.inv_freq[0] = torch.inf
    with pytest.raises(ValueError, match=r"positions that are not finite, in model\.rotary_emb\.inv_freq: mend rope_"):
        must_be_finite("name", model)


def test_a_config_that_is_a_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ValueError, match=r"config\.json is not a model's config: it is a pipe"):
        load(str(tmp_path))


def test_a_config_may_hold_infinity_as_mambas_do(whole, tmp_path):
    folder = copied(whole, tmp_path, {"time_step_limit": [0.0, float("inf")]})
    with pytest.raises(ValueError, match="no tokenizer that can be read"):  # so the model itself was
        load(str(folder))


@pytest.mark.parametrize(
    ("family", "key_of", "words"),
    [
        (
            "llama",
            lambda key: None if "layers.1.self_attn" in key else key,
            r"lacks 4 of the weights of LlamaForCausalLM, .*random: model\.layers\.1\.self_attn\.k_proj\.weight, ",
        ),
        ("llama", lambda key: f"mine.{key}", r"its files hold mine\.lm_head\.weight instead: rename their keys"),
        ("bert", lambda key: None if key.startswith("embeddings.word") else key, r"lacks 1 of .*architectures"),
    ],
)
def test_weights_that_the_files_lack_are_not_drawn_at_random(family, key_of, words, tmp_path):
    build(family).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    kept = {key_of(key): value for key, value in load_file(weights).items() if key_of(key) is not None}
    save_file(kept, weights, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=words):
        load(str(tmp_path))


def test_only_a_pooler_may_be_missing(tmp_path):
    build("bert").save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    save_file({k: v for k, v in load_file(weights).items() if "pooler" not in k}, weights, metadata={"format": "pt"})
    assert not load(str(tmp_path)).generates


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(number):
    model = build("llama")
    must_be_finite("mine", model)
    model.model.layers[1].self_attn.q_proj.weight.data[0, 0] = number
    with pytest.raises(ValueError, match=r"'mine' has weights that are not finite, in model.layers.1.self_attn.q_proj"):
        must_be_finite("mine", model)


def test_an_encoder_with_a_decoder_is_no_causal_language_model():
    assert [tiny(family).generates for family in ("llama", "bert", "t5", "bart")] == [True, False, False, False]


def test_real_weights_load_and_their_tokenizer_knows_its_words():
    loaded = load("rxnmapper")
    ids = loaded.tokens("CC(=O)Cl.OCC>>CCOC(C)=O")
    assert loaded.tokenizer.unk_token_id not in ids
    words = loaded.tokenizer.convert_ids_to_tokens(ids[0].tolist())
    assert words[:8] == ["[CLS]", "C", "C", "(", "=", "O", ")", "Cl"]
    predicted = loaded.model(ids).logits.argmax(-1)
    # Random weights guess one word in 591; a masked language model repeats what it sees.
    assert (predicted == ids).float().mean() > 0.8


@pytest.mark.parametrize("layers", [0, 1])
def test_weights_of_layers_that_the_config_lacks_are_not_left_out(layers, whole, tmp_path):
    with pytest.raises(ValueError, match=rf"layers that its config does not have, such as model\.layers\.{layers}"):
        load(str(copied(whole, tmp_path, {"num_hidden_layers": layers})))


def test_a_tokenizer_of_another_model_is_named():
    loaded = tiny("llama")
    loaded.model.resize_token_embeddings(8)
    with pytest.raises(ValueError, match="the model has embeddings of 8: they are of different models"):
        loaded.tokens("some text")


def test_positions_behind_that_of_padding_are_no_part_of_the_context():
    """RoBERTa has 66 embeddings for 64 tokens: a length of 66 failed in the middle of the work."""
    config = transformers.RobertaConfig(
        vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=66, pad_token_id=1,
    )  # fmt: skip
    model = transformers.RobertaForMaskedLM(config).eval()
    assert LoadedModel("roberta", model, None).context == 64
    model(torch.full((1, 64), 5))
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, 65), 5))


def test_something_else_for_a_name_is_refused(tmp_path):
    for wrong in (tmp_path, 5, None):
        with pytest.raises(TypeError, match="expected the name or the folder of a model as text, got"):
            load(wrong)


def test_no_token_is_an_id_too():
    assert tiny("llama").tokens("").dtype == torch.long
