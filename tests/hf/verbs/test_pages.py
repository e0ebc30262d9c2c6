"""The pages of certify, calibrate, evaluate and doctor in a browser, with the committed figures of SmolLM2."""

import re
import shlex

import pytest

from sharpmax.commands.options import parser
from sharpmax.dispersion import Dispersion
from sharpmax.hf.verbs.calibrate import CalibrationResult
from sharpmax.hf.verbs.certify import CertificationResult
from sharpmax.hf.verbs.diagnose import DiagnosisResult, diagnose, verdict
from sharpmax.hf.verbs.doctor import DoctorResult
from sharpmax.hf.verbs.evaluate import EvaluationResult
from sharpmax.report.page import Drawn
from tests.committed import committed
from tests.hf.tiny import tiny
from tests.report.browser import assert_legible, needs_browser
from tools import diagnosis_figure

READING = {"median": 1.23, "low": 1.2, "high": 1.3, "turns": 9}


def judged(result, folder, **also):
    """Return a judged result with the right answers and text losses of the committed card."""
    found = committed("calibration", "smollm2", "metrics.json")["seed2"]
    judgement = {name: found[name] for name in ("tasks", "text", "answers_overall")}
    metrics = {"judgement": judgement, "reading_time": READING, "most_rise": 0.005, "verdict": "gains"}
    return result({**metrics, "card": "runs/calibrate/smollm2-learn-seed0/card.json", **also}, folder, "smollm2")


def calibration(folder):
    return judged(CalibrationResult, folder, quick=False)


def evaluation(folder):
    return judged(EvaluationResult, folder)


def certification(folder):
    return CertificationResult(
        {**committed("certify", "smollm2", "metrics.json"), "length": 512, "card": None}, folder, "smollm2"
    )


def doctor(folder):
    metrics = committed("diagnose", "smollm2-maximum", "metrics.json")
    found = Dispersion.from_json(metrics["dispersion"])
    right = {str(n): {"share": 1 / n, "questions": 8} for n in found.lengths}
    said = {**metrics, **verdict(found), "right": right, "generates": True}
    diagnosis = DiagnosisResult(said, folder, "smollm2", found, "a text")
    advice = {"advice": "use the card"}
    return DoctorResult(advice, folder, "smollm2", diagnosis, certification(folder), evaluation(folder))


@needs_browser
@pytest.mark.parametrize("of", [certification, calibration, evaluation, doctor])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_of_a_verb_is_legible_and_whole_on_a_phone_and_a_screen(of, dark, tmp_path):
    folder = tmp_path / of.__name__ / "smollm2"
    folder.mkdir(parents=True)
    assert_legible(of(folder).save_page(), dark, tmp_path)


@pytest.mark.parametrize("of", [certification, calibration, evaluation, doctor])
def test_a_figure_says_what_it_shows_and_what_to_do_next_can_be_pasted(of, tmp_path):
    """A takeaway is a sentence with a figure in it."""
    found = of(tmp_path)
    captions = [block.caption for block in found.page().blocks if isinstance(block, Drawn)]
    assert captions
    assert all(re.search(r"\d.*\.$", caption) for caption in captions)
    said = found.next_step().partition("  # ")[0]
    assert not said.startswith("sharpmax ") or parser().parse_args(shlex.split(said)[1:])
    assert "(" not in said or said.startswith("with ")


def test_a_card_of_ones_own_is_judged_on_longer_text_before_it_is_used(tmp_path):
    assert doctor(tmp_path).next_step().startswith("sharpmax evaluate smollm2 --card runs/calibrate/")


def test_the_figure_of_the_docs_is_of_the_committed_diagnosis(tmp_path):
    written = diagnosis_figure.page(tmp_path).read_text(encoding="utf-8")
    assert "look first at head 21.8" in written
    assert "695, 875, 832, 488" in written


@pytest.mark.parametrize(
    ("options", "said"),
    [({"asked": 20}, "prompts are of a task: name it"), ({"task": "lookup", "rows": 3}, "rows are of a text")],
)
def test_an_option_that_would_not_be_read_is_refused(tmp_path, options, said):
    with pytest.raises(ValueError, match=said):
        diagnose(tiny("llama"), out=tmp_path, quiet=True, **options)
    assert not list(tmp_path.iterdir())
