"""The forecast of a model's heads: the probe's own rows are those of the logits, and the verdict tells it."""

import numpy as np
import pytest
import torch

from sharpmax.dispersion.crowd import observe_logits
from sharpmax.hf.diagnosis.heads import diagnose_text
from sharpmax.hf.diagnosis.probe import RowProbe
from sharpmax.hf.verbs.diagnose import _forecast_lines, verdict
from tests.hf.tiny import tiny

TEXT = "".join(f"{i * i % 91} of {i} words that differ; " for i in range(60))


def test_the_probe_sees_what_the_logits_say():
    query, key = torch.randn(1, 2, 12, 4), torch.randn(1, 2, 12, 4)
    probe = RowProbe(lambda queries: torch.tensor([queries - 1]), lambda _: 12, keep=True)
    probe(0, query, key, {"is_causal": True, "scale": 0.5})
    rows = probe.dispersion(["only"]).observed[12]
    said = observe_logits(0.5 * (query @ key.mT)[:, :, -1:].double().numpy())
    for name, values in vars(said).items():
        np.testing.assert_allclose(getattr(rows, name), values, rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_sink_is_no_token():
    """Only tokens have a largest weight and a spread; the sink is in the entropy."""
    query, key = torch.randn(1, 2, 12, 4), torch.randn(1, 2, 12, 4)
    probe = RowProbe(lambda queries: torch.tensor([queries - 1]), lambda _: 12, keep=True)
    probe(0, query, key, {"is_causal": True, "scale": 0.5, "sinks": torch.tensor([9.0, -9.0])})
    found = probe.dispersion(["only"])
    e = 0.5 * (query @ key.mT)[0, :, -1].double().numpy()
    largest = np.exp(e.max(-1)) / (np.exp(e).sum(-1) + np.exp([9.0, -9.0]))
    np.testing.assert_allclose(found.values["largest_weight"][0, :, 0], largest, rtol=1e-4)
    np.testing.assert_allclose(found.most_spread[0], np.ptp(e, axis=-1), rtol=1e-4)


@pytest.mark.parametrize("behind", [0, 5])
def test_a_short_row_of_a_long_call_is_what_it_would_be_alone(behind):
    """Rows of one pass over a long text: each counts by its own reach, where its own place is the last key."""
    query, key = torch.randn(1, 2, 24, 4), torch.randn(1, 2, 24 + behind, 4)
    asked = [6, 9, 23]
    probe = RowProbe(lambda _: torch.tensor(asked), lambda index: index + 1, keep=True)
    probe(0, query, key, {"is_causal": True, "scale": 0.5})
    observed = probe.dispersion(["only"]).observed
    for row in asked:
        reach = row + behind + 1
        said = observe_logits(0.5 * (query[:, :, row : row + 1] @ key[:, :, :reach].mT).double().numpy())
        for name, values in vars(said).items():
            found = getattr(observed[row + 1], name)
            np.testing.assert_allclose(found, values, rtol=1e-4, atol=1e-5, err_msg=f"{name} of row {row}")


def test_a_window_does_not_grow():
    query, key = torch.randn(1, 1, 16, 4), torch.randn(1, 1, 16, 4)
    near = torch.ones(16, 16, dtype=torch.bool).tril().triu(-3)[None, None]
    probe = RowProbe(lambda queries: torch.tensor([queries - 1]), lambda _: 16, keep=True)
    probe(0, query, key, {"mask": near})
    rows = probe.dispersion(["window"]).observed[16]
    np.testing.assert_array_equal(rows.grown(8)[0], rows.entropy)
    assert np.isinf(rows.times_until(rows.largest_weight.item() / 2)).all()


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_a_diagnosis_carries_its_forecast_and_tells_it(family):
    found = diagnose_text(tiny(family), TEXT, [8, 16, 24, 200], rows=8)
    said = verdict(found)["forecast"]
    assert said["lengths"] == [400, 800, 1600, 3200, 6400]
    assert np.shape(said["entropy"]) == (*found.entropy.shape[:2], 5)
    assert said["rehearsal"]["fitted_up_to"] == 24
    (line,) = _forecast_lines(said, found, "tokens")
    assert "rehearsed from 24 to 200 tokens" in line


def test_too_few_lengths_say_so():
    found = diagnose_text(tiny("llama"), TEXT, [64, 128], rows=4)
    (line,) = _forecast_lines(verdict(found)["forecast"], found, "tokens")
    assert line.startswith("no forecast beyond 128 tokens")
