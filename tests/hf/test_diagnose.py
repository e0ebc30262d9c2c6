"""Diagnosis against the dense weights of the model's own attention, family by family."""

import numpy as np
import pytest
import torch

from sharpmax.diagnose import QUANTITIES
from sharpmax.hf.diagnose import diagnose_prompts, diagnose_text
from tests.hf.tiny import tiny

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
    windowed = {"mistral": [0, 1], "gemma2": [0]}.get(family, [])
    for i, n in enumerate(found.lengths):
        # One row a length is the first of those that see about n keys; a window shows all its rows the same 7.
        for layer in range(2):
            if layer in windowed:
                continue
            row = max(1, round(n * 0.94)) - 1
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


def test_prompts_are_measured_at_their_last_row():
    loaded = tiny("llama")
    found = diagnose_prompts(loaded, {3: ["abc", "xyz"], 6: ["abcdef"]})
    assert found.lengths == [3, 6]
    expected = np.mean([entropy(dense_rows(loaded, loaded.tokens(t)))[:, :, -1] for t in ("abc", "xyz")], axis=0)
    np.testing.assert_allclose(found.entropy[..., 0], expected, atol=1e-5)
    assert found.rows == [2, 1]


@pytest.mark.parametrize("family", ["gpt_oss", "gemma3", "qwen3"])
def test_sinks_windows_and_norms_are_measured_without_complaint(family):
    found = diagnose_text(tiny(family), TEXT, [4, 6, 64], rows=4)
    for name in QUANTITIES:
        assert np.isfinite(found.values[name][..., :2]).all()


def test_lengths_that_do_not_fit_are_refused():
    loaded = tiny("llama")
    with pytest.raises(ValueError, match="positions for 256"):
        diagnose_text(loaded, TEXT, [512])
    with pytest.raises(ValueError, match="fewer than the longest"):
        diagnose_text(loaded, "short", [64])
    with pytest.raises(ValueError, match="2 or more"):
        diagnose_text(loaded, TEXT, [])
    with pytest.raises(ValueError, match="at least one prompt"):
        diagnose_prompts(loaded, {4: []})


def test_the_command_writes_numbers_figures_and_a_page(tmp_path, capsys):
    import json

    from sharpmax.cli import main

    (tmp_path / "text.txt").write_text("CC(=O)Cl.OCC>>CCOC(C)=O" * 40)
    arguments = ["rxnmapper", "--text", str(tmp_path / "text.txt"), "--lengths", "8", "32", "128"]
    assert main(["diagnose", *arguments, "--out", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert "spread of the logits over all heads" in said
    assert "rank correlation" in said
    folder = tmp_path / "runs" / "diagnose" / "rxnmapper-text"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert np.shape(metrics["dispersion"]["entropy"]) == (12, 8, 3)
    assert (folder / "figures" / "entropy.svg").exists()
    assert "OCC&gt;&gt;CCOC" in (folder / "diagnosis.html").read_text()
    assert main(["certify", *arguments[:3], "--length", "64", "--out", str(tmp_path / "runs")]) == 0
    assert "no token holds 50% beyond" in capsys.readouterr().out


def test_the_command_refuses_in_one_line(tmp_path, capsys):
    from sharpmax.cli import main

    assert main(["diagnose", "rxnmapper", "--task", "sorting", "--out", str(tmp_path)]) == 2
    assert "expected a task among" in capsys.readouterr().err
