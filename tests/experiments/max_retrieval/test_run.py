"""The experiment from its options to its page, at a size that takes seconds."""

import json
from dataclasses import replace

import pytest

import sharpmax
from sharpmax.experiments.max_retrieval import run
from sharpmax.experiments.max_retrieval.plan import plan_run
from sharpmax.experiments.max_retrieval.recipes import PAPER_RECIPE
from sharpmax.report import write_report

SMALL = {"quick": True, "seeds": 2, "steps": 24, "largest": 64}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    run(out, **SMALL)
    return out


def folder(root, **options):
    return root / "max-retrieval" / plan_run(**{"seed": 0, "full": False, "recipe": "paper", **SMALL, **options}).name


def test_metrics_hold_one_number_for_each_rule_size_and_seed(root):
    metrics = json.loads((folder(root) / "metrics.json").read_text())
    accuracy = metrics["accuracy"]
    assert {"softmax", "paper", "entropy_target", "log_n", "best_constant", "hard"} <= set(accuracy)
    assert all(len(by_size[n]) == 2 for by_size in accuracy.values() for n in ("16", "64"))
    assert metrics["config"]["recipe"]["steps"] == 24
    assert metrics["command"]


def test_every_figure_of_the_page_is_there_and_the_report_holds_it(root):
    page = json.loads((folder(root) / "page.json").read_text())
    figures = [block["file"] for block in page["blocks"] if block["kind"] == "figure"]
    assert {"figures/accuracy.svg", "figures/maps-rules.svg", "figures/losses.svg"} <= set(figures)
    assert all((folder(root) / figure).exists() for figure in figures)
    assert "Table 1" in write_report(root).read_text()


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers_and_another_does_not(root, tmp_path):
    again, other = run(tmp_path, **SMALL), run(tmp_path, seed=1, **SMALL)
    first = json.loads((folder(root) / "metrics.json").read_text())
    assert again == {name: first[name] for name in again}
    assert other["accuracy"] != first["accuracy"]


@pytest.mark.slow
def test_a_recipe_of_ones_own_is_run_and_told(tmp_path):
    mine = replace(PAPER_RECIPE, name="mine", head=replace(PAPER_RECIPE.head, width=16, gelu="exact", biased=True))
    metrics = run(tmp_path, recipe=mine, **SMALL)
    assert metrics["recipe"] == "mine"
    assert (tmp_path / "max-retrieval" / "mine-quick-seeds2-steps24-largest64" / "page.json").exists()


def test_the_fitted_table_is_a_card(root):
    assert isinstance(sharpmax.load_policy(folder(root) / "table-card.json"), sharpmax.Table)


def test_a_plan_says_what_the_full_run_is():
    plan = plan_run(seed=0, quick=False, full=True, recipe="paper")
    assert (plan.name, plan.seeds, plan.recipe.steps) == ("paper", 10, 100_000)
    assert plan.sizes == tuple(2**k for k in range(4, 15))
    assert plan.sets_of(1024) >= 4096
    assert plan.sets_of(2048) >= 1024
    sharp = plan_run(seed=0, quick=False, full=True, recipe="sharp")
    assert sharp.recipe.rotated
    assert sharp.recipe.sizes == (5, 16)
    assert sharp.sizes[-1] == 131_072


def test_a_run_is_named_after_what_makes_it_differ_from_the_full_one():
    names = [
        plan_run(**{"seed": 0, "quick": False, "full": True, "recipe": "sharp", **options}).name
        for options in ({"rotated": False}, {"seed": 3}, {"full": False, "seeds": 4, "largest": 2**20})
    ]
    assert names == ["sharp-unrotated", "sharp-seed3", "sharp-default-seeds4-largest1048576"]


def test_a_run_that_is_not_the_full_one_does_not_say_it_is():
    full = {"seed": 0, "quick": False, "full": True, "recipe": "paper"}
    mine = replace(PAPER_RECIPE, l2=0.0)
    changed = ({"seeds": 20}, {"largest": 32}, {"rotated": True}, {"recipe": mine})
    assert plan_run(**full).scale == "full"
    assert {plan_run(**{**full, **options}).scale for options in changed} == {"changed"}
