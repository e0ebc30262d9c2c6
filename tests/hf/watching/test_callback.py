"""The callback in a real Trainer: figures reach what it reports to, the record continues, the clip acts."""

import pytest
import torch

from sharpmax.hf import AttentionWatch
from sharpmax.runs.watched import read_record
from tests.hf.families import build
from tests.hf.trainers import trainer_of, trainer_that_fails

pytestmark = pytest.mark.filterwarnings("ignore")  # of the Trainer, on itself


def test_figures_of_every_watched_step_are_logged(tmp_path):
    model = build("llama")
    trainer, logged = trainer_of(tmp_path, model)
    trainer.add_callback(AttentionWatch(trainer, every=2, record=tmp_path / "run", threshold=1e-3, per_head=True))
    trainer.train()
    logs = [(step, log) for step, log in logged if "attention/max_logit" in log]
    assert [step for step, _ in logs] == [1, 3]
    for _, log in logs:
        assert log["attention/max_logit"] == max(log[f"attention/layer{i}/max_logit"] for i in (0, 1))
        assert log["attention/layer1/max_logit"] == max(log[f"attention/layer1/head{i}/max_logit"] for i in range(4))
        assert 0 < log["attention/layer0/entropy"] < 3.2
        assert 0 < log["attention/layer0/first_share"] < 1
        assert log["attention/clipped_heads"] == 8
    record = read_record(tmp_path / "run")
    assert [line["step"] for line in record.steps] == [0, 2]
    assert record.steps[1]["loss"] is not None
    assert all("sharpmax_site" not in part.__dict__ for part in model.modules())


def test_a_second_run_does_not_begin_with_the_loss_of_the_first(tmp_path):
    trainer, _ = trainer_of(tmp_path, build("llama"), steps=1)
    callback = AttentionWatch(trainer, every=1)
    trainer.add_callback(callback)
    for name in ("first", "second"):
        callback.record = tmp_path / name
        trainer.train()
        assert [line.get("loss") for line in read_record(tmp_path / name).steps] == [None]


def test_accumulated_batches_are_one_step(tmp_path):
    trainer, _ = trainer_of(tmp_path, build("llama"), steps=2, gradient_accumulation_steps=2)
    trainer.add_callback(AttentionWatch(trainer, every=1, record=tmp_path / "run"))
    trainer.train()
    assert [line["rows"] for line in read_record(tmp_path / "run").steps] == [2 * 48] * 2


def test_a_run_that_the_trainer_resumes_keeps_one_record(tmp_path):
    def run(steps, resume, name):
        trainer, _ = trainer_of(tmp_path / name, build("llama"), steps, save_strategy="steps", save_steps=2)
        trainer.args.lr_scheduler_type = "constant"
        trainer.add_callback(AttentionWatch(trainer, every=1, record=tmp_path / name / "watch.jsonl"))
        trainer.train(resume_from_checkpoint=resume)
        return read_record(tmp_path / name / "watch.jsonl").steps

    run(3, False, "killed")  # its checkpoint is of step 2
    checkpoint = str(tmp_path / "killed" / "checkpoint-2")
    resumed = run(4, checkpoint, "killed")
    whole = run(4, False, "whole")
    assert [line["step"] for line in resumed] == [0, 1, 2, 3]
    for one, other in zip(resumed, whole, strict=True):
        assert torch.tensor(one["maximum"]) == pytest.approx(torch.tensor(other["maximum"]), rel=1e-4)


def test_after_a_step_that_died_the_model_is_given_back(tmp_path):
    model = build("llama")
    trainer = trainer_that_fails(tmp_path, model)
    callback = AttentionWatch(trainer)
    trainer.add_callback(callback)
    with pytest.raises(IndexError):
        trainer.train()
    callback.close()
    assert model.config._attn_implementation == "eager"


def test_a_step_that_never_comes_is_refused():
    with pytest.raises(ValueError, match="every 1 step"):
        AttentionWatch(None, every=0)
    with pytest.raises(TypeError, match="the Trainer whose log gets the figures, got NoneType"):
        AttentionWatch(None)


@pytest.mark.parametrize("every", [1, 2])
def test_the_trainer_logs_its_loss_in_every_step_still(tmp_path, every):
    trainer, logged = trainer_of(tmp_path, build("llama"), steps=3)
    trainer.add_callback(AttentionWatch(trainer, every=every))
    trainer.train()
    assert [step for step, log in logged if "loss" in log] == [1, 2, 3]
