"""A real Trainer on a tiny model, and what it reports."""

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.hf.families import tokens


class Tracker(TrainerCallback):
    """Stands for whatever the Trainer reports to."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append((state.global_step, dict(logs)))


def trainer_of(folder, model, steps=4, **more):
    """Return a Trainer of two examples a step, and the list of what it logs: (step, figures)."""
    data = [{"input_ids": ids, "labels": ids} for ids in tokens(batch=8)]
    options = {"logging_steps": 1, "save_strategy": "no", "seed": 1, **more}
    arguments = TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True,
        dataloader_pin_memory=False, **options,
    )  # fmt: skip
    tracker = Tracker()
    return Trainer(model, arguments, train_dataset=data, callbacks=[tracker]), tracker.logs


def trainer_that_fails(folder, model):
    """Return a Trainer whose first step raises IndexError: its text has a token that there is not."""
    options = TrainingArguments(str(folder), max_steps=1, report_to=[], use_cpu=True, disable_tqdm=True)
    return Trainer(model, options, train_dataset=[{"input_ids": torch.full((4,), 10**6), "labels": torch.ones(4)}])
