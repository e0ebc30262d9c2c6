"""The committed results of max retrieval keep what the project claims of them."""

import numpy as np
import pytest

from sharpmax.experiments.max_retrieval import paper_table
from sharpmax.experiments.max_retrieval.page import _discrepancy, _what_rules_do
from sharpmax.experiments.max_retrieval.tables import beside_the_paper, gains_of_the_polynomial
from sharpmax.statistics import paired_p_value
from tests.committed import committed


def accuracy(recipe: str, rule: str) -> dict[int, np.ndarray]:
    metrics = committed("max-retrieval", recipe, "metrics.json")
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


def test_our_gain_of_the_papers_polynomial_is_flagged_where_it_is_not_the_papers():
    metrics = committed("max-retrieval", "paper", "metrics.json")
    gains = {gain.size: gain for gain in gains_of_the_polynomial(metrics)}
    assert (gains[1024].told, round(gains[1024].paper, 1)) == ("+9.1 ± 0.7", 3.9)
    assert (round(gains[2048].ours, 1), round(gains[2048].paper, 1)) == (8.9, 3.7)
    assert {1024, 2048} <= {n for n, gain in gains.items() if gain.differs}
    assert not gains[16].differs
    flagged = {row[0]: row[6].endswith("*") for row in beside_the_paper(metrics).rows}
    assert flagged == {f"{n:,}": gain.differs for n, gain in gains.items()}
    few = beside_the_paper({**metrics, "seeds": 2})
    assert all(row[-1] == "-" for row in few.rows)
    assert "fewer than three seeds" in few.caption
    (text,) = _discrepancy(metrics)
    assert "1,024 items: +9.1 ± 0.7 here, +3.9 in the paper" in text.text


def test_entropy_target_is_hard_attention_on_this_task_and_the_page_says_so():
    metrics = committed("max-retrieval", "paper", "metrics.json")
    solved, hard = (accuracy("paper", rule) for rule in ("entropy_target", "hard"))
    assert max(abs(solved[n].mean() - hard[n].mean()) for n in hard) < 0.01
    assert "EntropyTarget equals hard within 0.00 points" in _what_rules_do(metrics).text


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
    metrics = committed("max-retrieval", run, "metrics.json")
    assert len(metrics["commit"]) == 40
    assert "reproduce max-retrieval" in metrics["command"]
    assert metrics["versions"]["jax"]
