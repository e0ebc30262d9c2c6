"""The committed figures follow from the committed answers, and the page's words from the figures."""

import math

import pytest

from sharpmax.experiments.tables.plan import FULL
from sharpmax.experiments.tables.summary import summarise
from tests.committed import steps_of
from tools.tables.records import read

PLACE = ("tables", "full-seed0")


@pytest.fixture(scope="module")
def metrics():
    return read(*PLACE, "metrics.json")


def test_the_figures_follow_from_the_answers(metrics):
    found = steps_of(*PLACE, "steps.tar.gz")
    answers = {key: value for key, value in found.items() if key.partition("-")[0].isdecimal()}
    assert not answers.keys() & set(metrics["missing"])
    assert summarise(FULL, answers, metrics["fit"]["temperature"]) == metrics["summary"]


def test_what_the_page_says(metrics):
    over = metrics["summary"]["over_tables"]
    assert list(over) == ["1024", "2048", "4096"]
    assert all(key.split("-")[0] in ("8192", "16384") for key in metrics["missing"])
    for arms in over.values():
        for arm, rivals in arms.items():
            if "plain" in rivals:
                assert rivals["plain"]["tables"] == 4
                if arm != "scaled":
                    assert rivals["plain"]["loss"]["interval"][1] > 0
    assert over["4096"]["log-n"]["plain"]["accuracy"]["interval"][0] > 0
    assert over["1024"]["paper"]["plain"]["loss"]["interval"][0] > 0
    for n in ("2048", "4096"):
        assert metrics["summary"]["cells"][n]["flights-carrier"]["log-n"]["against"]["plain"]["loss"]["interval"][1] < 0
        for arm in ("subset", "parts", "equal", "logistic", "boosting"):
            low, high = over[n][arm]["plain"]["loss"]["interval"]
            assert low < 0 < high
    fit = metrics["fit"]
    assert fit["slope"] == pytest.approx(1 / math.log(1024))
    assert fit["share"] == 0.5
    assert over["4096"]["one"] == over["4096"]["log-n"]
