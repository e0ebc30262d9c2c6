"""The list of experiments, and running from it."""

import pytest

from sharpmax.experiments import EXPERIMENTS, reproduce


def test_names_are_unique_and_claims_are_one_line():
    assert len({experiment.name for experiment in EXPERIMENTS}) == len(EXPERIMENTS)
    assert all("\n" not in experiment.claim for experiment in EXPERIMENTS)


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"nonsense.*bounds"):
        reproduce(["nonsense"], out=tmp_path)


def test_one_name_may_stand_for_itself(tmp_path):
    with pytest.raises(ValueError, match="'nonsense'"):
        reproduce("nonsense", out=tmp_path)


def test_options_of_one_experiment_need_it_named_alone(tmp_path):
    with pytest.raises(ValueError, match="named alone"):
        reproduce(["bounds", "bounds"], out=tmp_path, steps=3)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("max-retrieval", {"steps": 0}, "steps"),
        ("clrs-text", {"arms": ["sharper"]}, "expected arms among plain, paper, ssmax, learn, got sharper"),
        ("clrs-text", {"device": "mars"}, "cannot run on the device 'mars'"),
        ("clrs-text", {"model": "no such model"}, "no such model"),
        ("clrs-text", {"rates": [0.001], "device": "mars"}, "cannot run on the device 'mars'"),
    ],
)
def test_what_was_refused_leaves_nothing_behind(name, options, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        reproduce(name, out=tmp_path / "runs", quick=True, **options)
    assert not list(tmp_path.iterdir())
