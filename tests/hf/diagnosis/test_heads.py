"""Diagnosis against the dense weights of the model's own attention, family by family."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sharpmax.cli import main
from sharpmax.dispersion import QUANTITIES
from sharpmax.hf import LoadedModel, Sharpened
from sharpmax.hf.diagnosis.heads import diagnose_prompts, diagnose_text
from sharpmax.hf.verbs import diagnose
from tests.hf.families import WINDOW, build
from tests.hf.tiny import tiny
from tests.places import ROOT

TEXT = "Attention that stays sharp at any size, whatever the length of the text it reads. " * 2


def dense_rows(loaded, ids):
    """Return the weights (layer, head, query, key) of the model's own eager attention."""
    with torch.no_grad():
        attentions = loaded.model(ids, output_attentions=True).attentions
    return np.stack([weights[0].double().numpy() for weights in attentions])


def entropy(weights):
    return -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1)


@pytest.mark.parametrize("family", ["llama", "gemma2", "mistral", "gpt2", "opt"])
def test_a_decoder_is_read_once_and_each_length_is_its_rows(family):
    loaded = tiny(family)
    found = diagnose_text(loaded, TEXT, [8, 32, 128], rows=1)
    weights = dense_rows(loaded, loaded.tokens(TEXT)[:, :128])
    assert found.lengths == [8, 32, 128]
    windowed = {"mistral": [0, 1], "gemma2": [0]}.get(family, [])
    for i, n in enumerate(found.lengths):
        for layer in range(2):
            row = max(1, round(n * 0.94)) - 1  # one row a length is the first of those that are about there
            assert found.keys[layer, i] == (min(row + 1, WINDOW) if layer in windowed else row + 1)
            np.testing.assert_allclose(found.entropy[layer, :, i], entropy(weights)[layer, :, row], atol=1e-5)
            np.testing.assert_allclose(
                found.values["first_mass"][layer, :, i], weights[layer, :, row, 0], rtol=1e-4, atol=1e-8
            )
            np.testing.assert_allclose(
                found.values["largest_weight"][layer, :, i], weights[layer, :, row].max(-1), rtol=1e-4
            )


@pytest.mark.parametrize("family", ["bert", "albert", "roberta"])
def test_an_encoder_reads_a_text_of_each_length(family):
    loaded = tiny(family)
    found = diagnose_text(loaded, TEXT, [8, 32], rows=64)
    for i, n in enumerate(found.lengths):
        ids = loaded.tokens(TEXT)
        part = torch.cat([ids[:, : n - 1], ids[:, -1:]], 1)
        np.testing.assert_allclose(found.entropy[..., i], entropy(dense_rows(loaded, part)).mean(-1), atol=1e-5)


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_an_encoder_and_its_decoder_read_the_same_text_of_each_length(family):
    loaded = tiny(family)
    found = diagnose_text(loaded, TEXT, [8, 32], rows=1)
    for i, n in enumerate(found.lengths):
        ids = loaded.tokens(TEXT)
        part = torch.cat([ids[:, : n - 1], ids[:, -1:]], 1)
        with torch.no_grad():
            dense = loaded.model(input_ids=part, decoder_input_ids=part, output_attentions=True)
        row = max(1, round(n * 0.94)) - 1
        pairs = zip(dense.decoder_attentions, dense.cross_attentions, strict=True)
        for layer, weights in enumerate([*dense.encoder_attentions, *(w for pair in pairs for w in pair)]):
            np.testing.assert_allclose(
                found.entropy[layer, :, i], entropy(weights[0].double().numpy())[:, row], atol=1e-5
            )


def test_a_shared_module_is_measured_on_prompts_too():
    loaded = tiny("albert")
    found = diagnose_prompts(loaded, {3: ["abc"]})
    expected = entropy(dense_rows(loaded, loaded.tokens("abc")))[:, :, -1]
    np.testing.assert_allclose(found.entropy[..., 0], expected, atol=1e-5)


def test_prompts_are_measured_at_their_last_row():
    loaded = tiny("llama")
    found = diagnose_prompts(loaded, {3: ["abc", "xyz"], 6: ["abcdef"]})
    assert found.lengths == [3, 6]
    expected = np.mean([entropy(dense_rows(loaded, loaded.tokens(t)))[:, :, -1] for t in ("abc", "xyz")], axis=0)
    np.testing.assert_allclose(found.entropy[..., 0], expected, atol=1e-5)
    assert found.rows == [2, 1]


def test_no_layer_of_a_figure_lies_above_all_keys_alike():
    """An item takes several tokens: the most that entropy can be is the log of the keys, not of the items."""
    found = diagnose_prompts(tiny("llama"), {n: ["12, " * n] for n in (2, 4, 8)})
    *layers, most = diagnose._entropy_figure(found, "tiny", "items").curves
    np.testing.assert_allclose(most.y, np.log([8, 16, 32]))
    assert np.max(layers[0].y) > np.log(8)
    for layer in layers:
        assert np.all(np.less_equal(layer.high, np.add(most.y, 1e-5)))


@pytest.mark.parametrize("family", ["gpt_oss", "gemma3", "qwen3"])
def test_sinks_windows_and_norms_are_measured_without_complaint(family):
    found = diagnose_text(tiny(family), TEXT, [4, 6, 64], rows=4)
    for name in QUANTITIES:
        assert np.isfinite(found.values[name]).all()


def test_lengths_that_do_not_fit_are_refused():
    loaded = tiny("llama")
    with pytest.raises(ValueError, match="positions for 256"):
        diagnose_text(loaded, TEXT, [512])
    with pytest.raises(ValueError, match="fewer than the longest"):
        diagnose_text(loaded, "short", [64])
    with pytest.raises(ValueError, match="2 or more"):
        diagnose_text(loaded, TEXT, [])
    with pytest.raises(ValueError, match="1 row or more"):
        diagnose_text(loaded, TEXT, [8], rows=0)
    with pytest.raises(ValueError, match="at least one prompt"):
        diagnose_prompts(loaded, {4: []})


@pytest.mark.parametrize(("family", "given"), [("vit", "pixel_values"), ("whisper", "input_features")])
def test_a_model_that_reads_no_text_is_refused_by_name(family, given):
    loaded = LoadedModel(family, build(family), None)
    with pytest.raises(NotImplementedError, match=f"reads {given}"):
        diagnose_text(loaded, TEXT, [8])
    with pytest.raises(NotImplementedError, match=f"reads {given}"):
        diagnose_prompts(loaded, {4: ["abcd"]})


def test_the_command_writes_numbers_figures_and_a_page(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("CC(=O)Cl.OCC>>CCOC(C)=O" * 40)
    arguments = ["rxnmapper", "--text", str(tmp_path / "text.txt"), "--lengths", "8", "32", "128"]
    assert main(["diagnose", *arguments, "--out", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert "rank correlation" not in said  # forecasts are folded away, on the page
    folder = tmp_path / "runs" / "diagnose" / "rxnmapper-text"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert np.shape(metrics["dispersion"]["entropy"]) == (12, 8, 3)
    assert (folder / "figures" / "entropy.svg").exists()
    page = (folder / "diagnosis.html").read_text()
    assert "OCC&gt;&gt;CCOC" in page
    assert "spread of the logits over all heads" in page
    assert "rank correlation" in page
    assert main(["certify", *arguments[:3], "--length", "64", "--out", str(tmp_path / "runs")]) == 0
    assert "seen on 64 tokens: with the spread of logits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "option", "differ"),
    [
        ("--text text.txt", "--rows 3", "rows: 64 there, 3 here; "),
        pytest.param("--task maximum", "", "", marks=pytest.mark.slow),  # other prompts have a folder of their own
    ],
)
def test_a_run_goes_on_to_other_lengths_and_to_no_other_settings(source, option, differ, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("CC(=O)Cl.OCC>>CCOC(C)=O" * 40)

    def run(lengths, *others, out="runs"):
        status = main(
            ["diagnose", "rxnmapper", *source.split(), "--lengths", *lengths.split(), "--out", out, "--quiet", *others]
        )
        return status, capsys.readouterr().err

    def dispersion(out):
        (file,) = (tmp_path / out).glob("diagnose/*/metrics.json")
        metrics = json.loads(file.read_text())
        assert metrics["config"]["lengths"] == metrics["dispersion"]["lengths"]
        return metrics["dispersion"]

    assert run("8 32") == run("64 16") == run("32") == run("8 16 32 64", out="at once") == (0, "")
    assert dispersion("runs")["lengths"] == [8, 16, 32, 64]
    assert dispersion("runs") == dispersion("at once")
    status, said = run("8", *option.split(), "--seed", "1")
    assert status == 2
    assert f"({differ}seed: 0 there, 1 here); choose another --out, or delete that folder" in said
    assert dispersion("runs")["lengths"] == [8, 16, 32, 64]


def test_the_committed_diagnosis_and_certificates_are_found_again(tmp_path, monkeypatch):
    """Those of the smallest built-in model, by the text that docs/results/models.md gives."""
    monkeypatch.chdir(tmp_path)
    text = "CC(=O)Cl.OCC>>CCOC(C)=O.Brc1ccccc1.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1." * 12
    Path("reactions.txt").write_text(text)
    assert main(["diagnose", "rxnmapper", "--text", "reactions.txt", "--lengths", "16", "32", "64", "128", "256"]) == 0
    assert main(["certify", "rxnmapper", "--text", "reactions.txt"]) == 0

    def both(place):
        return [json.loads((root / place / "metrics.json").read_text()) for root in (ROOT / "results", Path("runs"))]

    kept, found = both("diagnose/rxnmapper-text")
    assert found["spread"] == pytest.approx(kept["spread"], rel=1e-3)
    assert found["decay"]["layers_actual"] == kept["decay"]["layers_actual"]
    kept, found = both("certify/rxnmapper")
    for key in ("proved_spread", "measured_spread"):
        assert [head[key] for head in found["heads"]] == pytest.approx([h[key] for h in kept["heads"]], rel=1e-3)


def assert_refused(arguments, words, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["diagnose", "rxnmapper", "--task", "sorting"], "expected a task among"),
        (["diagnose", "rxnmapper", "--task", "recall"], "cwe, fwe, or lookup:WORDING, got 'recall'"),
        (["diagnose", "rxnmapper", "--task", "maximum", "--seed", "-1"], "expected a seed of at least 0, got -1"),
        (["diagnose", "rxnmapper", "--task", "maximum", "--lengths", "-4"], "expected lengths above 0, got [-4]"),
        (
            ["diagnose", "rxnmapper", "--lengths", "8", "--rows", "-3"],
            "1 row or more to observe at each length, got -3",
        ),
        (["diagnose", "rxnmapper", "--text", "bytes"], "bytes is not text in UTF-8: invalid start byte at byte 0"),
        (["diagnose", "rxnmapper", "--text", "empty"], "the text has 2 tokens"),
        (["diagnose", "rxnmapper", "--text", "missing"], "No such file"),
        (["diagnose", "rxnmapper", "--lengths", "8", "--out", "empty"], "cannot write the run folder empty/diagnose"),
        (["certify", "rxnmapper", "--text", "bytes"], "bytes is not text in UTF-8"),
        (["certify", "rxnmapper", "--text", "empty"], "expected a text of 2 tokens or more"),
        (["certify", "rxnmapper", "--length", "0"], "expected a length of 2 tokens or more, got 0"),
        (["certify", "rxnmapper", "--length", "99999999"], "has positions for 512 tokens, got a length of 99999999"),
        (["certify", "rxnmapper", "--card", "empty"], "empty is not a usable policy card"),
        (["certify", "rxnmapper", "--out", "empty"], "cannot write the run folder empty/certify"),
    ],
)
def test_the_command_refuses_in_one_line_before_any_work(arguments, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xa8\x00")
    (tmp_path / "empty").touch()
    monkeypatch.setattr(Sharpened, "_switch_on", lambda _: pytest.fail("the model was run"))
    assert_refused(arguments, words, capsys)
    assert {file.name for file in tmp_path.iterdir()} == {"bytes", "empty"}


def test_the_command_refuses_a_family_in_one_line(tmp_path, capsys):
    import transformers

    from sharpmax.hf.models.gemma import character_tokenizer

    options = {"vocab_size": 128, "hidden_size": 32, "n_layer": 1, "n_head": 2}
    transformers.BloomForCausalLM(transformers.BloomConfig(**options)).save_pretrained(tmp_path / "bloom")
    character_tokenizer().save_pretrained(tmp_path / "bloom")
    capsys.readouterr()
    for verb in ("diagnose", "certify"):
        assert_refused([verb, str(tmp_path / "bloom"), "--out", str(tmp_path)], "bypasses transformers'", capsys)


class LargestTensor(TorchDispatchMode):
    """Watches every tensor that an operation makes."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        self.numbers = max([self.numbers, *(t.numel() for t in tree_leaves(made) if isinstance(t, torch.Tensor))])
        return made


def test_no_matrix_of_all_weights_is_ever_formed():
    length, rows = 1024, 8
    loaded = tiny("llama", max_position_embeddings=length)
    with LargestTensor() as streamed:
        diagnose_text(loaded, TEXT * 30, [256, length], rows=rows)
    assert streamed.numbers <= 4 * 4 * rows * length  # a few rows of each of four heads, where a matrix has 1024
    ids = loaded.tokens(TEXT * 30)[:, :length]
    with LargestTensor() as dense, torch.no_grad():
        loaded.model(ids)
    assert dense.numbers >= length * length


def test_a_text_that_the_tokenizer_cannot_write_is_told(tmp_path, monkeypatch, capsys):
    """RXNMapper reads molecules: of Python's source it has tokens for the letters that stand for atoms."""
    monkeypatch.chdir(tmp_path)
    Path("reactions.txt").write_text("CC(=O)Cl.OCC>>CCOC(C)=O" * 9)
    said = "not of this text: rxnmapper has tokens for "
    for command in ("diagnose rxnmapper --lengths 8 32", "certify rxnmapper --length 32"):
        assert main([*command.split(), "--quiet"]) == 0
        assert said in capsys.readouterr().out
        assert main([*command.split(), "--text", "reactions.txt", "--quiet", "--out", "other"]) == 0
        assert "not of this text" not in capsys.readouterr().out
