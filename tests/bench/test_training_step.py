"""The benchmark of the folded head: it checks before it times, and what it counts does not depend on the machine."""

import pytest

from sharpmax.bench import bench, training_step


@pytest.fixture(scope="module")
def result():
    return bench("training-step", seeds=2, steps=2, repeats=1)["results"][0]


@pytest.mark.slow
def test_folding_saves_at_least_three_quarters_of_the_operations(result):
    assert result["fewer_operations"] >= 4


def test_every_figure_is_there(result):
    assert all(result["milliseconds"][form] > 0 for form in (training_step.FOLDED, training_step.DIRECT))
    assert result["faster"] > 1
    assert result["largest_difference"] < 1e-3


@pytest.mark.slow
def test_forms_that_learn_otherwise_are_not_timed(monkeypatch):
    def other(head, params, items, *rest, **more):
        return head(params, 2 * items, *rest, **more)

    monkeypatch.setattr(training_step, "direct_head", other)
    with pytest.raises(ArithmeticError, match="same losses"):
        training_step.measure(seeds=1, steps=2, repeats=1)
