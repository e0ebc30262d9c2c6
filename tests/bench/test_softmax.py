"""The softmax benchmark: checks before it times, and reports what it measured."""

import json

import numpy as np
import pytest

import sharpmax
from sharpmax.bench import bench
from sharpmax.bench.softmax import BY_HAND, OWN, SHARPMAX, measure

SMALL = {"rows": 16, "columns": 64, "repeats": 1}


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_each_framework_is_checked_and_timed(framework):
    (result,) = measure(**SMALL, frameworks=[framework])["results"]
    assert result["framework"] == framework
    assert result["largest_error"] <= 1e-5
    assert set(result["milliseconds"]) == {OWN, BY_HAND, SHARPMAX}
    assert result["ratio"] == result["milliseconds"][SHARPMAX] / result["milliseconds"][BY_HAND]


def test_a_wrong_result_is_not_timed(monkeypatch):
    monkeypatch.setattr(sharpmax, "softmax", lambda logits: np.full_like(logits, 1 / logits.shape[-1]))
    with pytest.raises(ArithmeticError, match="paper's rule"):
        measure(**SMALL, frameworks=["numpy"])


def test_the_table_is_printed_and_the_figures_are_written(tmp_path, capsys):
    figures = bench("softmax", json=tmp_path / "new" / "softmax.json", frameworks=["numpy"], **SMALL)
    assert json.loads((tmp_path / "new" / "softmax.json").read_text()) == figures
    assert "16 x 64 float32" in capsys.readouterr().out


def test_an_unknown_benchmark_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"nonsense.*softmax"):
        bench("nonsense")
