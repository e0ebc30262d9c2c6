"""The choice of a strength: the best that text allows, which may be the plain model."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

import sharpmax
from sharpmax.hf.calibration import choose as choosing
from sharpmax.hf.calibration import judge as judging
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

    def scored(_, found):
        rise = 0.004 * (found.strength / allowed) ** 2
        return {"answer_loss": abs(found.strength - least_loss), "accuracy": 0.5, "rise_at_most": rise}

    def sat(_, __, policy=None, **___):
        return SimpleNamespace(strength=0.0 if policy is None else strength_of(policy), losses={})

    monkeypatch.setattr(choosing, "sit", sat)
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


@pytest.mark.parametrize("refuses", ["answers", "text"])
def test_a_candidate_that_cannot_be_chosen_reads_no_more_text(loaded, refuses, monkeypatch):
    """What is left out changes no choice: the same strength is kept as where every candidate reads everything."""
    read = []
    before = judging.text_losses
    monkeypatch.setattr(judging, "text_losses", lambda *a, **k: read.append(k["window"]) or before(*a, **k))
    most_rise = math.inf if refuses == "answers" else -0.5
    fitted = per_layer(*(4 * [-3.0] if refuses == "answers" else 4 * [0.05]))
    choice = choose(loaded, fitted, exam(windows=(16, 32)), most_rise=most_rise)
    stopped = [score for score in choice.scores.values() if "stopped" in score]
    assert stopped
    assert len(read) < 2 * len(choice.scores)
    monkeypatch.setattr(choosing, "sit", lambda *a, enough=None, **k: sit(*a, **k))
    everything = choose(loaded, fitted, exam(windows=(16, 32)), most_rise=most_rise)
    assert (everything.name, everything.policy) == (choice.name, choice.policy)


def test_a_killed_choice_goes_on_with_the_candidates_it_has(loaded):
    """What was kept is not computed again, and scores are those of a choice that was never killed."""
    kept_on_disk, computed = {}, []

    def once(key, compute):
        if key not in kept_on_disk:
            computed.append(key)
            kept_on_disk[key] = json.loads(json.dumps(compute()))
            if len(computed) == 5:
                raise KeyboardInterrupt
        return kept_on_disk[key]

    options = {"most_rise": math.inf}
    whole = choose(loaded, per_layer(0.1, 0.2, 0.3, 0.4), exam(), **options)
    with pytest.raises(KeyboardInterrupt):
        choose(loaded, per_layer(0.1, 0.2, 0.3, 0.4), exam(), once=once, **options)
    again = choose(loaded, per_layer(0.1, 0.2, 0.3, 0.4), exam(), once=once, **options)
    assert len(computed) == len(set(computed))
    assert again == whole
