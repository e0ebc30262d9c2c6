"""The bounds experiment: the lemma holds, the policies do what the page says, a killed run ends the same."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from sharpmax.experiments import bounds, reproduce

KILL_AFTER = """
import os, sys
from sharpmax.experiments import bounds, reproduce
measure, calls = bounds.measure, []
def killed_at_the_eighth(*arguments, **keywords):
    calls.append(1)
    if len(calls) == 8:
        os.kill(os.getpid(), {signal})
    return measure(*arguments, **keywords)
bounds.measure = killed_at_the_eighth
reproduce(["bounds"], out=sys.argv[1], quick=True)
"""


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The folder of a quick run that nothing interrupted."""
    root = tmp_path_factory.mktemp("quick")
    reproduce(["bounds"], out=root, quick=True)
    return root / "bounds" / "quick-seed0"


@pytest.fixture(scope="module")
def metrics(quick):
    return json.loads((quick / "metrics.json").read_text())


@pytest.mark.slow  # tests/runs interrupts a smaller run
def test_a_killed_run_continues_and_ends_the_same(quick, tmp_path, monkeypatch):
    script = KILL_AFTER.format(signal=int(signal.SIGKILL))
    assert subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True).returncode == -signal.SIGKILL
    folder = tmp_path / "bounds" / "quick-seed0"
    assert len(list((folder / "steps").iterdir())) == 7
    assert not (folder / "metrics.json").exists()

    computed = []
    measure = bounds.measure
    monkeypatch.setattr(bounds, "measure", lambda *a, **k: computed.append(a) or measure(*a, **k))
    reproduce(["bounds"], out=tmp_path, quick=True)
    steps = len(list((quick / "steps").iterdir()))
    assert len(computed) == steps - 7

    stored, expected = (json.loads((at / "metrics.json").read_text()) for at in (folder, quick))
    assert stored["curves"] == expected["curves"]
    assert stored["config"] == expected["config"]
    for figure in (quick / "figures").iterdir():
        assert (folder / "figures" / figure.name).read_bytes() == figure.read_bytes(), figure.name


def test_another_seed_gives_other_numbers(metrics, tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "tell", lambda *_: None)  # the figures of one run are enough
    other = bounds.run(tmp_path, seed=1, quick=True)
    assert other["curves"]["crowd"]["PAPER"] != metrics["curves"]["crowd"]["PAPER"]


@pytest.mark.parametrize("arrangement", bounds.ARRANGEMENTS)
@pytest.mark.parametrize("n", [2, 3, 100])
def test_logits_have_exactly_the_spread(arrangement, n):
    logits = bounds.draw(arrangement, n, np.random.default_rng(0))
    assert logits.shape == (n,)
    assert np.ptp(logits) == bounds.SPREAD
    assert (logits == logits.max()).sum() == 1


def test_every_draw_keeps_the_lemma(metrics):
    assert metrics["outside_bounds"] == 0


def test_leaving_the_bounds_would_be_counted(metrics):
    weight = metrics["curves"]["needle"]["θ = 1"]["weight"]
    held = metrics["bounds"]["θ = 1"]
    sizes = len(metrics["sizes"])
    assert bounds._outside(weight, held) == 0
    assert bounds._outside(weight, {**held, "upper": [0.0] * sizes}) == sizes
    assert bounds._outside(weight, {**held, "lower": [1.1] * sizes}) == sizes


def test_what_the_page_says_of_the_policies_is_so(metrics):
    needle, crowd = (
        {rule: by_quantity["weight"]["mean"][-1] for rule, by_quantity in metrics["curves"][arrangement].items()}
        for arrangement in ("needle", "crowd")
    )
    assert needle["plain softmax"] < 0.01
    assert needle["PAPER"] == needle["plain softmax"]
    for rule in ("log n (from 16)", "SSMax (s = 0.43)", "EntropyTarget (0.5)"):
        assert needle[rule] > 0.9
    for rule in ("plain softmax", "PAPER", "log n (from 16)", "SSMax (s = 0.43)"):
        assert crowd[rule] < 0.01
    assert crowd["EntropyTarget (0.5)"] > 0.7


def test_paper_is_off_exactly_where_the_entropy_passes_its_root(metrics):
    for arrangement in bounds.ARRANGEMENTS:
        paper = metrics["curves"][arrangement]["PAPER"]
        for n, low, beta in zip(metrics["sizes"], paper["entropy"]["min"], paper["beta"]["max"], strict=True):
            if low > 5.945:
                assert beta == 1.0, (arrangement, n)
    assert metrics["paper_off_from"]["crowd"] == 1024


def test_the_page_is_in_the_report(quick):
    html = (quick.parent.parent / "report.html").read_text()
    assert "The theorem, drawn" in html
    assert html.count("data:image/svg+xml;base64,") == 5
