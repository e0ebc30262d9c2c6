"""The committed comparison, and what the project claims of it."""

import numpy as np
import pytest

from sharpmax.experiments.alternatives.arms import ARMS, SOFTMAX
from sharpmax.experiments.alternatives.summary import summarise
from sharpmax.statistics import student_interval
from tests.committed import assert_same, committed

RUNS = {
    name: committed("alternatives", name, "metrics.json")
    for name in ("paper", "paper-l2=0", "paper-learning-rate=0.0003", "paper-learning-rate=0.003")
}
BOTH = [RUNS["paper"], RUNS["paper-l2=0"]]
TITLES = {arm.name: arm.title for arm in ARMS}


def mean(run, arm, n, of="accuracy"):
    return 100 * float(np.mean(run[of][arm][n]))


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_statistics_are_of_the_accuracies_that_stand_beside_them(run):
    assert len(run["accuracy"][SOFTMAX]["16"]) == 10
    assert_same(summarise(run["accuracy"]), run["summary"], rel=1e-6)


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
