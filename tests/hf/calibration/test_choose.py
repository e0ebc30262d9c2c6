"""The choice of a strength: the best that text allows, which may be the plain model."""

import math

import numpy as np
import pytest

import sharpmax
from sharpmax.hf.calibration import choose as choosing
from sharpmax.hf.calibration.choose import FINE, choose, kept, search
from sharpmax.hf.calibration.judge import sit
from tests.hf.calibration.questions import exam


def per_layer(*heads):
    return sharpmax.PerLayer((sharpmax.LogLinear(a=tuple((a,) for a in heads), b=((0.0,),) * 4, c=((0.0,),) * 4),) * 2)


def test_what_is_kept_is_weaker_and_sparser():
    fitted = per_layer(0.1, 0.2, 0.3, 0.4)
    assert kept(fitted, 1.0, 0.5) == per_layer(0.05, 0.1, 0.15, 0.2)
    assert kept(fitted, 0.5, 0.5) == per_layer(0.0, 0.0, 0.15, 0.2)


def test_the_plain_model_may_be_the_best_choice(loaded):
    choice = choose(loaded, per_layer(2.0, 2.0, 2.0, 2.0), exam(), most_rise=-1.0)
    assert set(choice.scores) == {"plain", "50% of heads at strength 1"} | {
        f"100% of heads at strength {strength}" for strength in (1, 0.5, 0.25, 0.125, 0.0625)
    }
    assert (choice.name, choice.policy) == (None, None)


def choose_a_strength(monkeypatch, least_loss, allowed):
    """Choose where answers lose least at one strength, and text costs what it may at another."""

    def scored(_, strength):
        rise = 0.004 * (strength / allowed) ** 2
        return {"answer_loss": abs(strength - least_loss), "accuracy": 0.5, "rise_at_most": rise}

    monkeypatch.setattr(choosing, "sit", lambda _, __, policy=None: 0.0 if policy is None else strength_of(policy))
    monkeypatch.setattr(choosing, "score", scored)
    return choose(None, per_layer(1.0, 1.0, 1.0, 1.0), None, most_rise=0.005)


def strength_of(policy):
    return float(sum(layer.a[0][0] for layer in policy.policies) / 2)


@pytest.mark.parametrize(
    ("least_loss", "allowed", "best"),
    [
        (9.0, 5.3, 5.25),  # far beyond where it was fitted; text refuses more
        (1e6, 1e6, 983_040.0),  # no end, and not for long: steps grow
        (9.0, 1.63, 1.625),
        (1.2, 9.0, 1.1875),  # answers lose more on both sides
        (1.0, 9.0, 1.0),
        (0.3, 9.0, 0.3125),
        (9.0, 0.2, 0.1875),  # as fitted it costs too much
    ],
)
def test_the_strength_is_the_best_that_text_allows_wherever_it_lies(monkeypatch, least_loss, allowed, best):
    choice = choose_a_strength(monkeypatch, least_loss, allowed)
    assert choice.name == f"100% of heads at strength {best:g}"
    assert strength_of(choice.policy) == best
    step = 2 * FINE * max(best, 1.0)
    assert best + step > min(allowed, least_loss)
    assert len(choice.scores) < 30


def test_no_strength_is_chosen_where_text_allows_none(monkeypatch):
    choice = choose_a_strength(monkeypatch, least_loss=9.0, allowed=0.05)
    assert (choice.name, choice.policy) == (None, None)


def test_search_keeps_what_lowers_the_loss(loaded):
    choice = search(loaded, 2, (0.8, 1.25), exam(), most_rise=math.inf)
    assert choice.policy is not None
    best = min(score["answer_loss"] for score in choice.scores.values())
    found = sit(loaded, exam(), choice.policy)
    assert np.mean([a.loss for a in found.answers["letters", 1]]) == pytest.approx(best, rel=1e-5)
