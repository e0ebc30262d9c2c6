"""The comparison from its options to its page, at a size that takes seconds."""

import json

import jax
import jax.numpy as jnp
import pytest

from sharpmax.experiments.alternatives import run
from sharpmax.experiments.alternatives.arms import ARMS, FAMILIES, SOFTMAX, arms_named
from sharpmax.experiments.alternatives.judge import judge_arm
from sharpmax.experiments.alternatives.page import crowd, needle
from sharpmax.experiments.max_retrieval.plan import plan_run
from sharpmax.experiments.max_retrieval.train import Trained
from sharpmax.report import write_report

SMALL = {"quick": True, "seeds": 2, "steps": 8, "largest": 32}
SOME = ["entropy-target", "asentmax"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    run(out, arms=SOME, **SMALL)
    return out


def folder(root):
    (found,) = (root / "alternatives").iterdir()
    return found


def metrics_of(root):
    return json.loads((folder(root) / "metrics.json").read_text())


def test_metrics_hold_one_number_for_each_arm_size_and_seed(root):
    metrics = metrics_of(root)
    assert set(metrics["accuracy"]) == {SOFTMAX, *SOME}
    for quantity in ("accuracy", "right", "entropy", "first"):
        assert all(len(by_size[n]) == 2 for by_size in metrics[quantity].values() for n in ("16", "32"))
    assert metrics["summary"][SOFTMAX]["32"]["difference"] == 0
    assert {name: len(values) for name, values in metrics["learned"]["asentmax"].items()} == {"slope": 2, "offset": 2}
    assert {arm["name"] for arm in metrics["config"]["arms"]} == {arm.name for arm in ARMS}


def test_what_is_switched_on_at_inference_has_the_heads_of_softmax(root):
    trained = {path.name for path in (folder(root) / "arms").iterdir()}
    assert trained == {SOFTMAX, "asentmax"}
    metrics = metrics_of(root)
    assert metrics["entropy"]["entropy-target"] != metrics["entropy"][SOFTMAX]
    assert metrics["first"]["entropy-target"] == metrics["first"][SOFTMAX]  # no temperature changes the ranking


@pytest.mark.slow
def test_other_arms_join_the_same_run_and_change_none(root):
    before = metrics_of(root)
    file = folder(root) / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"arms": config["arms"][:-1]}))  # as if the last arm were new since
    run(root, arms=["relu"], **SMALL)
    after = metrics_of(root)
    assert set(after["accuracy"]) == {SOFTMAX, *SOME, "relu"}
    assert all(after["accuracy"][arm] == before["accuracy"][arm] for arm in before["accuracy"])


def test_a_head_that_became_nan_is_named():
    plan, (arm, *_) = plan_run(seed=0, full=False, recipe="paper", **SMALL), ARMS
    params = jax.tree.map(lambda leaf: jnp.full((2, *leaf.shape), jnp.nan), arm.head.init(jax.random.key(0)))
    with pytest.raises(ValueError, match=r"softmax became NaN in training \(seed 0\); try a smaller learning rate"):
        judge_arm(plan, arm, Trained(params, None, jnp.zeros((1, 2)), frozenset()), 16)


def test_another_recipe_has_a_folder_of_its_own(tmp_path):
    changed = run(tmp_path, arms=[SOFTMAX], l2=0, learning_rate=3e-3, **SMALL)
    (found,) = (tmp_path / "alternatives").iterdir()
    assert found.name.startswith("paper-learning-rate=0.003-l2=0-quick")
    assert json.loads((found / "config.json").read_text())["recipe"]["l2"] == 0
    assert changed["scale"] == "changed"


def test_the_page_has_its_figures_and_the_report_holds_it(root):
    page = json.loads((folder(root) / "page.json").read_text())
    figures = [block["file"] for block in page["blocks"] if block["kind"] == "figure"]
    assert {"figures/accuracy-sparse.svg", "figures/right.svg", "figures/crowd.svg"} <= set(figures)
    assert all((folder(root) / figure).exists() for figure in figures)
    assert "ASEntmax" in write_report(root).read_text()


def test_without_training_sparse_weights_keep_a_needle_and_nobody_keeps_a_crowd():
    """With logits that are bounded, at a million items."""
    last = {curve.label: curve.y[-1] for curve in needle().curves}
    assert last["softmax"] < 1e-4
    assert last["sigmoid, bias -log n"] < 1e-4
    assert last["1.5-entmax"] == last["sparsemax"] == last["ReLU / n"] == 1
    crowded = {curve.label: curve.y for curve in crowd().curves}
    for name, power in (("softmax", -1), ("1.5-entmax", -2 / 3), ("sparsemax", -1 / 2)):
        assert crowded[name][-1] / crowded[name][-3] == pytest.approx(4**power, rel=0.02)  # of four times the items


def test_every_arm_has_a_name_of_its_own_a_family_and_softmax_is_always_told():
    assert len({arm.name for arm in ARMS}) == len(ARMS)
    assert {arm.family for arm in ARMS} == set(FAMILIES)
    assert [arm.name for arm in arms_named(["linear"])] == [SOFTMAX, "linear"]
    assert arms_named([]) == ARMS
