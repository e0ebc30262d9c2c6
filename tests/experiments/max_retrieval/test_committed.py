"""The committed results of max retrieval keep what the project claims of them."""

import json

import numpy as np
import pytest

from sharpmax.experiments.max_retrieval import paper_table
from sharpmax.experiments.max_retrieval.statistics import paired_p_value
from tests.places import ROOT

RESULTS = ROOT / "results" / "max-retrieval"


def accuracy(recipe: str, rule: str) -> dict[int, np.ndarray]:
    metrics = json.loads((RESULTS / recipe / "metrics.json").read_text())
    return {int(n): 100 * np.asarray(seeds) for n, seeds in metrics["accuracy"][rule].items()}


def test_softmax_is_table_1_within_3_points_and_5_beyond_2048():
    ours = accuracy("paper", "softmax")
    for n, theirs in zip(paper_table.SIZES, paper_table.SOFTMAX, strict=True):
        if theirs is None:
            continue
        assert len(ours[n]) == 10
        assert abs(ours[n].mean() - theirs) <= (3 if n <= 2048 else 5), n


def test_entropy_target_recovers_the_ceiling_of_temperature():
    plain, solved, hard = (accuracy("paper", rule) for rule in ("softmax", "entropy_target", "hard"))
    apart = [n for n in plain if hard[n].mean() - plain[n].mean() >= 2]
    assert len(apart) >= 5
    for n in apart:
        assert solved[n].mean() - plain[n].mean() >= 0.95 * (hard[n].mean() - plain[n].mean()), n
    assert solved[16].mean() >= plain[16].mean()


@pytest.mark.parametrize(("n", "least"), [(16_384, 99), (131_072, 95)])
def test_the_sharp_recipe_holds_far_beyond_its_training(n, least):
    found = accuracy("sharp", "entropy_target")[n]
    assert len(found) == 10
    assert found.mean() >= least


def test_a_rotation_of_the_inputs_changes_nothing_beyond_chance():
    turned, straight = (accuracy(run, "entropy_target") for run in ("sharp", "sharp-unrotated"))
    assert max(turned) == 131_072
    p_values = [paired_p_value(turned[n], straight[n]) for n in turned]
    assert min(p for p in p_values if p is not None) > 0.05 / len(p_values)
    assert len(turned[131_072]) == len(straight[131_072]) == 10


@pytest.mark.parametrize("run", ["paper", "sharp", "sharp-unrotated"])
def test_a_committed_run_names_its_code_and_its_command(run):
    metrics = json.loads((RESULTS / run / "metrics.json").read_text())
    assert len(metrics["commit"]) == 40
    assert "reproduce max-retrieval" in metrics["command"]
    assert metrics["versions"]["jax"]
