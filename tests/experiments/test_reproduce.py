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


REFUSED = {
    "alternatives": [
        ({"arms": ["soup"]}, r"expected arms among softmax, .*, got soup"),
        ({"largest": 32768}, "at most 16384"),
        ({"full": True}, "at most one of quick and full"),
        ({"seeds": 0}, "seeds of at least 1"),
        ({"l2": -1e-3}, "l2 to be at least 0 and below 1"),
        ({"learning_rate": float("nan")}, "learning_rate to be at least 0"),
        ({"learning_rate": 0.0}, "a learning rate above 0"),
    ],
    "blow-up": [
        ({"seeds": 0}, "seeds of at least 1"),
        ({"steps": 9}, "steps of at least 10"),
        ({"rate": 0.0}, "rate above 0"),
        ({"rate": float("inf")}, "rate above 0"),
        ({"threshold": float("nan")}, "threshold above 0"),
    ],
    "calibration": [
        ({"seed": 1}, "five seeds of its own"),
        ({"only": ["seed7"]}, "seed7"),
        ({"arms": ["seal"]}, "arms among all, learn"),
        ({"arms": ["learn"], "seeds": 0}, "expected seeds of at least 1, got 0"),
        ({"arms": ["learn"], "only": ["seed0"]}, "arms alone"),
        ({"pilot": True}, "--arms all"),
        ({"arms": ["learn"], "pilot": True}, "at most one of quick and pilot"),
        ({"prompts": 0}, "expected prompts of at least 1, got 0"),
        ({"questions": 0}, "expected questions of at least 1, got 0"),
        ({"together": 0}, "expected together of at least 1, got 0"),
    ],
    "clrs-protocol": [
        ({"only": ("gates",)}, "expected stages among rates, gate, arms, got gates"),
        ({"arms": ("beyond",)}, "expected trained arms among plain, paper, ssmax, got beyond"),
        ({"gather": True, "only": ("rates",)}, "gather computes nothing, not rates either"),
        ({"gather": True}, "holds nothing to gather yet; run it without --gather"),
        ({"together": 0}, "expected together of at least 1, got 0"),
        ({"steps": 0}, "expected steps of at least 1, got 0"),
        ({"rates": (0.0,)}, "expected learning rates above 0, got 0.0"),
        ({"rates": (0.1, float("nan"))}, "expected learning rates above 0, got nan"),
        ({"algorithms": ("bfs",)}, "expected algorithms among activity_selector"),
        ({"precision": "fp8"}, "expected a precision among float32, tf32, bf16, got 'fp8'"),
        ({"device": "mars"}, "cannot run on the device 'mars': "),
        ({"width": 9}, "expected an even number of heads that divides the width, got 2, 9"),
    ],
    "clrs-text": [
        ({"arms": ["sharper"]}, "expected arms among plain, paper, ssmax, learn, got sharper"),
        ({"arms": ("paper",)}, "expected the arm plain"),
        ({"device": "mars"}, "cannot run on the device 'mars'"),
        ({"model": "no such model"}, "no such model"),
        ({"rates": [0.001], "device": "mars"}, "cannot run on the device 'mars'"),
        *(({"rates": (1e-3, rate)}, "learning rates above 0") for rate in (0.0, -1e-3, float("inf"), float("nan"))),
        ({"seeds": 0}, "seeds of at least 1"),
        ({"seed": 2**32 - 1}, "seeds below"),
        ({"parallel": -3}, "at least 1, got -3"),
        ({"only": ("budget",), "rates": (0.1,)}, "rates are tried alone"),
    ],
    "context": [
        ({"arms": ("shipped",)}, "no shipped card of tiny"),
        ({"arms": ("card",)}, "expected arms among nothing"),
        ({"scalings": ("linear",)}, "expected scalings among none"),
        ({"factors": (0.5,)}, "factors of at least 1"),
        ({"parts": ("prose",)}, "expected parts among text"),
        ({"factors": (2.0, float("nan"))}, "factors of at least 1"),
        ({"tasks": ("nonsense",)}, "expected a task among"),
    ],
    "max-retrieval": [
        ({"full": True}, "at most one of quick and full"),
        ({"recipe": "soup"}, "paper, sharp"),
        ({"seeds": 0}, "seeds of at least 1"),
        ({"steps": 0}, "steps of at least 1"),
        ({"largest": 8}, "largest of at least 16"),
        ({"largest": 20_000}, "multiple of 16384"),
    ],
    "recall": [
        ({"seeds": 0}, "expected seeds of at least 1, got 0"),
        ({"device": "mars"}, "cannot run on the device 'mars': "),
    ],
    "tables": [
        ({"tables": ["irises"]}, "expected tables among trees, waves, clusters, got irises"),
        ({"arms": ["magic"]}, r"expected arms among plain, log-n, .*, got magic"),
        ({"largest": 8}, "are asked from 64 rows on, got largest=8"),
    ],
}


@pytest.mark.parametrize(
    ("name", "options", "says"), [(name, *case) for name, cases in REFUSED.items() for case in cases]
)
def test_what_does_not_fit_is_refused_before_any_work_and_leaves_nothing_behind(name, options, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        reproduce(name, out=tmp_path / "runs", quick=True, **options)
    assert not list(tmp_path.iterdir())
