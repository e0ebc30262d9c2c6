"""A policy that changes nothing is not called a gain: 200 of them, with the noise of real items, at both settings.

The noise is that of the committed study: each item's result with and without a fitted policy, swapped at random. So
both sides have one distribution, and the items keep their spread, their ties and their heavy tails.
"""

import numpy as np
import pytest

from sharpmax import defaults
from sharpmax.hf.calibration.judge import Sheet, Verdict, compare
from tests.committed import steps_of

NULLS, MOST = 200, 0.05


@pytest.fixture(scope="module")
def real():
    """Return the sheets of the plain model and of a fitted policy on the study's items."""
    step = steps_of("calibration", "smollm2", "steps.tar.gz")
    plain, policy = step["plain-main-seed60"], step["judge-seed0"]["records"]
    return Sheet.from_json(plain[0]), Sheet.from_json(policy[0])


def null_pair(real, rng, sizes, prompts, windows, per_window):
    """Draw an exam of these sizes from the real items, and swap the two results of each at random."""
    drawn = [Sheet({}, {}, 1.0), Sheet({}, {}, 1.0)]
    answers = [[a for of in sheet.answers.values() for a in of] for sheet in real]
    for size in sizes:
        for place in rng.integers(len(answers[0]), size=prompts):
            pair = [of[place] for of in answers]
            for sheet, answer in zip(drawn, pair if rng.random() < 0.5 else pair[::-1], strict=True):
                sheet.answers.setdefault(("lookup", size), []).append(answer)
    for (kind, window), plain in real[0].losses.items():
        if window in windows:
            for place in rng.integers(len(plain), size=per_window // window):
                pair = [sheet.losses[kind, window][place] for sheet in real]
                for sheet, loss in zip(drawn, pair if rng.random() < 0.5 else pair[::-1], strict=True):
                    sheet.losses.setdefault((kind, window), []).append(loss)
    return drawn


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("text", [False, True])
def test_at_most_one_null_policy_in_twenty_is_called_a_gain(real, quick, text):
    """Without text the answers alone decide, which is where a false gain would come from."""
    usual = {"sizes": defaults.EXAM_SIZES, "prompts": defaults.PROMPTS, "windows": defaults.WINDOWS}
    chosen = defaults.QUICK if quick else {**usual, "text_tokens": defaults.TEXT_TOKENS}
    rng = np.random.default_rng(quick)
    gains = 0
    for _ in range(NULLS):
        windows = chosen["windows"] if text else ()
        pair = null_pair(real, rng, chosen["sizes"], chosen["prompts"], windows, chosen["text_tokens"])
        gains += compare(*pair).verdict(defaults.MOST_RISE) == Verdict.GAINS
    assert gains <= MOST * NULLS


def test_the_fitted_policy_itself_is_called_a_gain(real):
    """The same items, not swapped: so the test above can fail. (One kind has seven windows, and may rise by 1 %.)"""
    assert compare(*real).verdict(most_rise=0.02) == Verdict.GAINS
