"""The committed comparison, what the project claims of it, and the page that tells it."""

import json

import numpy as np
import pytest

from sharpmax.experiments.alternatives.arms import ARMS, SOFTMAX
from sharpmax.experiments.alternatives.summary import summarise
from sharpmax.statistics import student_interval
from tests.places import ROOT

RUNS = {
    name: json.loads((ROOT / "results" / "alternatives" / name / "metrics.json").read_text())
    for name in ("paper", "paper-l2=0", "paper-learning-rate=0.0003", "paper-learning-rate=0.003")
}
BOTH = [RUNS["paper"], RUNS["paper-l2=0"]]
TITLES = {arm.name: arm.title for arm in ARMS}


def mean(run, arm, n, of="accuracy"):
    return 100 * float(np.mean(run[of][arm][n]))


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_statistics_are_of_the_accuracies_that_stand_beside_them(run):
    assert len(run["accuracy"][SOFTMAX]["16"]) == 10
    again = json.loads(json.dumps(summarise(run["accuracy"])))
    for arm, by_size in run["summary"].items():
        for n, entry in by_size.items():
            for name, value in entry.items():
                assert again[arm][n][name] == (value if value is None else pytest.approx(value, rel=1e-6, abs=1e-12))


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_committed_run_names_its_code_and_the_arms_as_they_are(run):
    assert len(run["commit"]) == 40
    assert "reproduce alternatives --full" in run["command"]
    defined = {arm.name: arm.config for arm in ARMS}
    assert all(arm == defined[arm["name"]] for arm in run["config"]["arms"])


@pytest.mark.parametrize("run", BOTH, ids=["paper", "no L2"])
def test_nobody_is_ahead_of_softmax_with_its_temperature_solved(run):
    assert set(run["accuracy"]) == set(TITLES)
    solved = run["accuracy"]["entropy-target"]
    for arm, by_size in run["accuracy"].items():
        for n in by_size:
            apart = np.subtract(by_size[n], solved[n])
            assert student_interval(apart.tolist())[0] <= 0, (arm, n)
    others = [arm for arm in run["accuracy"] if arm not in (SOFTMAX, "paper", "entropy-target")]
    assert all(mean(run, "entropy-target", "1024") > mean(run, arm, "1024") for arm in others)


@pytest.mark.parametrize("run", BOTH, ids=["paper", "no L2"])
def test_what_is_not_normalised_ranks_worse_and_learns_less(run):
    for arm in ("sigmoid", "relu", "stick-breaking"):
        assert mean(run, arm, "1024", "first") < mean(run, SOFTMAX, "1024", "first") - 20
        assert mean(run, arm, "16") < mean(run, SOFTMAX, "16") - 2


def cells(first, header):
    """Return the cells after the first of the page's row of that name, in the table of that header."""
    table = PAGE[PAGE.index(header) :].split("\n\n")[0]
    (row,) = (line for line in table.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in row.split("|")[2:-1]]


PAGE = (ROOT / "docs" / "alternatives.md").read_text()


@pytest.mark.parametrize("arm", TITLES)
def test_the_page_gives_the_committed_accuracies(arm):
    found = cells(TITLES[arm], "| | n = 16 | 256 |")
    for run, sizes in zip(BOTH, (("16", "256", "1024", "4096", "16384"), ("16", "1024", "16384")), strict=True):
        here, found = found[: len(sizes) + 1], found[len(sizes) + 1 :]
        assert here == [*(f"{mean(run, arm, n):.1f}" for n in sizes), f"{mean(run, arm, '1024', 'first'):.0f}"]


@pytest.mark.parametrize("arm", [arm for arm in TITLES if arm != SOFTMAX])
def test_the_page_gives_the_committed_differences(arm):
    expected = []
    for run in BOTH:
        for n in ("1024", "16384"):
            entry = run["summary"][arm][n]
            low, high = (100 * end for end in entry["interval"])
            expected.append(f"{100 * entry['difference']:+.1f} [{low:+.1f}, {high:+.1f}], p {entry['p_value']:.1g}")
    assert cells(TITLES[arm], "| | n = 1,024 |") == expected


@pytest.mark.parametrize("arm", [SOFTMAX, "entropy-target", "sigmoid", "relu", "stick-breaking", "linear"])
def test_the_page_gives_the_other_recipes(arm):
    expected = [f"{mean(run, arm, '16'):.1f}, {mean(run, arm, '1024'):.1f}" for run in RUNS.values()]
    assert cells(TITLES[arm], "| at 16 items, and at 1,024 |") == expected


def test_the_page_says_how_often_heads_rank_rightly():
    alike = [a for a in TITLES if a not in ("hard", "sigmoid", "relu", "stick-breaking", "linear")]
    for run, said in zip(BOTH, ("63 to 66 % of the sets of 1,024 items", "76 to 81 %; hard"), strict=True):
        ranked = [mean(run, arm, "1024", "first") for arm in alike]
        assert f"{min(ranked):.0f} to {max(ranked):.0f} %" in said
        assert said in PAGE
    bare, sigmoid = RUNS["paper"], "sigmoid"
    said = f"ranks {mean(bare, sigmoid, '16', 'first'):.0f} % of the sets of 16 items rightly and answers"
    assert f"{said} {mean(bare, sigmoid, '16'):.0f}" in PAGE
    assert sorted(round(100 * x) for x in RUNS["paper-l2=0"]["accuracy"]["hard"]["16"])[:5] == [10, 11, 11, 11, 31]


def test_the_page_gives_the_nearest_beside_the_best():
    for run in BOTH:
        for n in ("1024", "16384"):
            apart = np.subtract(run["accuracy"]["entropy-target"][n], run["accuracy"]["asentmax"][n])
            low, high = (100 * end for end in student_interval(apart.tolist()))
            assert f"{100 * apart.mean():+.1f} [{low:+.1f}, {high:+.1f}]" in PAGE


def test_readme_gives_the_committed_accuracies():
    text = (ROOT / "README.md").read_text()
    for line in text[text.index("| in softmax's place |") :].split("\n\n")[0].splitlines()[2:]:
        name, *numbers = (cell.strip().strip("*") for cell in line.split("|")[1:-1])
        (arm,) = (arm.name for arm in ARMS if arm.title == name)
        run, bare = BOTH
        expected = [mean(run, arm, "16"), mean(run, arm, "1024"), mean(run, arm, "16384"), mean(bare, arm, "1024")]
        assert numbers == [f"{value:.1f}" for value in expected]
