"""The callback: a real Trainer logs entropy and largest weight of each layer, and the model is as before."""

import pytest
import torch
from transformers import Trainer

import sharpmax
from sharpmax.hf import AttentionLog, sharpen
from tests.hf.families import build
from tests.hf.trainers import trainer_of, trainer_that_fails

pytestmark = pytest.mark.filterwarnings("ignore")  # of the Trainer, on itself


def trained(folder, model, every, **more):
    trainer, logs = trainer_of(folder, model, logging_steps=100, **more)
    trainer.add_callback(AttentionLog(trainer, every=every))
    trainer.train()
    return [(step, log) for step, log in logs if any("attention/" in name for name in log)]


def test_every_second_step_is_logged_for_every_layer(tmp_path):
    model = build("llama")
    logs = trained(tmp_path, model, every=2)
    assert [step for step, _ in logs] == [1, 3]
    for _, log in logs:
        for layer in (0, 1):
            assert 0 < log[f"attention/layer{layer}/entropy"] < 3.2
            assert 0 < log[f"attention/layer{layer}/largest_weight"] <= 1
    assert model.config._attn_implementation == "eager"


def test_gradient_checkpointing_logs_the_same(tmp_path):
    (_, plain), (_, checkpointed) = (
        trained(tmp_path, build("llama"), every=4, gradient_checkpointing=on)[0] for on in (False, True)
    )
    assert checkpointed == pytest.approx(plain)


def test_a_sharpened_model_keeps_its_policy(tmp_path):
    model = build("llama")
    seen = []
    with sharpen(model, sharpmax.Constant(2.0), observer=lambda _, stats: seen.append(stats.inverse_temperature.max())):
        assert len(trained(tmp_path, model, every=2)) == 2
        assert (
            torch.stack(seen).tolist() == [2.0] * 8
        )  # of two layers in every step: the callback's figures come beside


def test_after_a_step_that_died_the_model_is_given_back(tmp_path):
    model = build("llama")
    trainer = trainer_that_fails(tmp_path, model)
    log = AttentionLog(trainer)
    trainer.add_callback(log)
    with pytest.raises(IndexError):
        trainer.train()
    assert model.config._attn_implementation != "eager"
    log.close()
    assert model.config._attn_implementation == "eager"


def test_the_trainer_logs_its_loss_in_the_same_steps(tmp_path):
    trainer, logs = trainer_of(tmp_path, build("llama"), steps=2)
    trainer.add_callback(AttentionLog(trainer, every=1))
    trainer.train()
    assert [step for step, log in logs if "loss" in log] == [1, 2]


@pytest.mark.parametrize("how", ["sharpened by Constant(1.0)", "watched"])
def test_a_model_that_attends_plainly_is_logged_too(tmp_path, how):
    model = build("llama")
    with sharpen(model, sharpmax.Constant(1.0)) if how.startswith("sharpened") else sharpmax.torch.watch(model):
        assert [step for step, _ in trained(tmp_path, model, every=2)] == [1, 3]


@pytest.mark.parametrize(("wrong", "kind"), [({"every": 1.5}, ValueError), ({"trainer": None}, TypeError)])
def test_what_cannot_be_logged_is_refused_at_once(wrong, kind):
    given = {"trainer": Trainer.__new__(Trainer), "every": 1, **wrong}
    with pytest.raises(kind, match="expected"):
        AttentionLog(given["trainer"], every=given["every"])
