"""The benchmark of fine-tuning: every policy in turn, beside plain attention, on real text."""

from functools import partial

import pytest

from sharpmax.bench.finetune import measure, show
from sharpmax.cli import main
from sharpmax.hf.finetune import train
from sharpmax.tasks.clrs_text.corpus import Plan

PLAN = Plan(("minimum",), (4, 5), (4,), train_examples=200, test_samples=1)


@pytest.mark.filterwarnings("ignore")  # of the Trainer, on itself
@pytest.mark.slow
def test_every_policy_is_measured_beside_plain_attention():
    found = measure(model="gemma-tiny", steps=2, tokens=512, repeats=2, policies=("paper",), device="cpu", plan=PLAN)
    assert found["of_plain"]["none"] == 1
    assert set(found["tokens_per_second"]) == {"none", "paper"}
    assert all(len(speeds) == 2 and min(speeds) > 0 for speeds in found["tokens_per_second"].values())
    assert show(found).row_count == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_blocks_are_measured_beside_the_model_as_it_is(monkeypatch):
    monkeypatch.setattr(train, "compiled", partial(train.compiled, backend="aot_eager"))
    options = {"steps": 2, "tokens": 512, "repeats": 1, "policies": ("paper",), "device": "cpu", "plan": PLAN}
    found = measure(model="gemma-tiny", compile=True, **options)
    assert found["compiled"]["of_plain"]["none"] == 1
    assert set(found["compiled"]["tokens_per_second"]) == {"none", "paper"}
    assert found["compiled"]["first_turn_seconds"] > 0
    assert show(found).row_count == 4


def test_an_unknown_policy_is_refused_before_a_model_is_loaded(monkeypatch, capsys):
    monkeypatch.setattr("sharpmax.bench.finetune.gemma", lambda *_, **__: pytest.fail("loaded first"))
    assert main(["bench", "finetune", "--model", "gemma-tiny", "--policies", "paper", "zz"]) == 2
    expected = "expected a policy among none, paper, ssmax, learn or the path of a card, got 'zz'"
    assert capsys.readouterr().err == f"sharpmax: error: {expected}\n"
