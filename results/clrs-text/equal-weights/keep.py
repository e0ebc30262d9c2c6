"""`python keep.py …` is `python -m sharpmax …` that keeps each arm's weights and policy in $KEPT/<arm>-seed<n>/."""

import os
import runpy
import sys
from pathlib import Path

import torch
from sharpmax.hf.trained_policy import PREFIX, save_policy

from sharpmax.experiments.clrs_text import arm

train_and_judge, judge = arm.train_and_judge, arm._right
trained = []


def remembering(study, name, seed, *rest):
    """Train and judge, with the name of what is being trained at hand."""
    trained[:] = [f"{name}-seed{seed}"]
    return train_and_judge(study, name, seed, *rest)


def keeping(model, policy, test, device):
    """Judge, the first time after a training with the weights kept; the folder has its name once it is whole."""
    if trained:
        kept = Path(os.environ["KEPT"]) / (trained.pop() + ".part")
        kept.mkdir(parents=True)
        weights = {name: value.cpu() for name, value in model.state_dict().items() if PREFIX not in name}
        torch.save(weights, kept / "weights.pt")
        save_policy(policy, kept)
        kept.rename(kept.with_suffix(""))
    return judge(model, policy, test, device)


arm.train_and_judge, arm._right = remembering, keeping
sys.argv[0] = "sharpmax"
runpy.run_module("sharpmax", run_name="__main__", alter_sys=True)
