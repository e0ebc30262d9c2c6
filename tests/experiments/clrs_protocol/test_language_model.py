"""A language model is fine-tuned on the published text at random positions, and its record is as the others' are."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sharpmax.core.policies import Beyond
from sharpmax.experiments import clrs_protocol
from sharpmax.experiments.clrs_protocol import language_model
from sharpmax.experiments.clrs_protocol import study as studies
from sharpmax.experiments.compare.train import Recipe
from sharpmax.hf.finetune.answer_batches import Encoded, at_random_positions, pack, pad
from sharpmax.hf.finetune.answer_model import answer_logits, each_answer
from sharpmax.hf.models.gemma import gemma

pytestmark = pytest.mark.filterwarnings("ignore::sharpmax.SilentPolicyWarning")


def test_random_positions_are_in_order_and_reach_the_model():
    draws = np.random.default_rng(0)
    examples = [Encoded(draws.integers(2, 90, size=size).astype(np.int32), size // 2) for size in (12, 30)]
    placed = at_random_positions(examples, 64, seed=1)
    for example in placed:
        assert (np.diff(example.places) > 0).all()
        assert 0 <= example.places[0] < example.places[-1] < 64
    row = pack(placed, [1, 0], width=64, of=2)
    expected = np.concatenate((placed[1].places, placed[0].places))
    assert row["position_ids"][0, :42].tolist() == expected.tolist()
    assert "position_ids" not in pad(examples, [0, 1])
    batch = pad(placed, [0])
    assert batch["position_ids"][0, :12].tolist() == placed[0].places.tolist()
    with pytest.raises(ValueError, match="expected at most 20 tokens for as many positions, got 30"):
        at_random_positions(examples, 20, seed=1)


def test_answers_are_judged_at_their_positions():
    model = gemma("gemma-tiny", seed=0, device="cpu").model
    example = Encoded(np.arange(3, 19, dtype=np.int32), 12)
    placed = replace(example, places=np.arange(16) * 5)
    likely, said = each_answer(model, [placed])
    ids, at = torch.from_numpy(placed.ids)[None].long(), torch.arange(11, 15)
    logits = answer_logits(model, ids, at, torch.from_numpy(placed.places)[None])
    right = logits.log_softmax(-1)[torch.arange(4), ids[0, 12:]]
    np.testing.assert_allclose(likely[0], right.detach().numpy(), rtol=1e-4, atol=1e-4)
    assert said[0].tolist() == logits.argmax(-1).tolist()
    assert not np.allclose(likely[0], each_answer(model, [example])[0][0], atol=1e-4)


@pytest.mark.parametrize(
    ("said", "right", "letter"),
    [("1", "2", "i"), ("\n\n", "2", "e"), ("2", "\n\n", "l"), (",", "2", "f"), ("]\n", "\n", "i")],
)
def test_mistakes_of_pieces_of_text(said, right, letter):
    assert language_model._mistake(said, right) == letter


@pytest.mark.slow
def test_it_runs_in_small(tmp_path, monkeypatch):
    small = replace(
        studies.QUICK,
        algorithms=("minimum",),
        recipe=Recipe(steps=2, batch=8),
        seeds={"plain": 2, "paper": 2, "ssmax": 1},
        tuning_steps=1,
        lengths=(4, 6, 32),
    )
    monkeypatch.setattr(studies, "QUICK", small)
    monkeypatch.setattr(language_model, "HELD_OUT", 8)
    asked = []
    on_policy = language_model.on_policy
    monkeypatch.setattr(language_model, "on_policy", lambda model, p: (asked.append(p), on_policy(model, p))[1])
    found = clrs_protocol.run(tmp_path, quick=True, device="cpu", model="gemma-tiny")
    assert set(found["arms"]) == {"plain", "paper", "ssmax", "paper-inference", "beyond"}
    # What `Beyond` counts as trained is the longest question that training could hold.
    assert max(p.trained for p in asked if isinstance(p, Beyond)) < 400
    assert found["arms"]["paper"]["spans"]["extrapolation"]["all"]["log_likelihood"] < 0
    assert (tmp_path / "clrs-protocol" / "gemma-tiny-quick" / "page.json").exists()


def test_what_is_of_the_other_model_is_refused():
    with pytest.raises(ValueError, match="smollm2 has its own layers, positions"):
        studies.plan(quick=False, model="smollm2", layers=4, positions="half")
    with pytest.raises(ValueError, match="smollm2 has its own precision"):
        studies.plan(quick=False, model="smollm2", precision="float32")
    with pytest.raises(ValueError, match="smollm2 trains one seed at a time"):
        clrs_protocol.run(model="smollm2", together=2, device="cpu")
    with pytest.raises(ValueError, match="tokens are of a language model's steps"):
        studies.plan(quick=False, tokens=512)
    name, study = studies.plan(quick=False, model="smollm2")
    assert name == "smollm2-full"
    assert study.rates == (3e-4,)
