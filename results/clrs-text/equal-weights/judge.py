"""`python judge.py NAME SEED`: what the sharpmax on PYTHONPATH makes of weights that `keep.py` kept in $KEPT.

First the gradients of one packed row, of the weights as they were before training, twice by each policy, into
`gradients-NAME.pt`; then every test question judged with each arm's weights, as they come, into `judged-NAME.json`:
how many tokens of each answer are right, in batches of 32,768 tokens as in the experiment and of half that.
"""

import json
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from sharpmax.experiments.finetuning import autocast, load_by_name, on_policy
from sharpmax.hf.answer_batches import encode, pack, plan_rows
from sharpmax.hf.answer_model import answering, right_tokens
from sharpmax.hf.trained_policy import learned_parameters, policy_named, remove_policy, restore_policy

from sharpmax.core.policies import PAPER
from sharpmax.experiments.clrs_text.study import ARMS, SCALES
from sharpmax.hf.sharpen import sharpen
from sharpmax.tasks.clrs_text.corpus import corpus

WIDTH = 8192
PROJECTIONS = ("q_proj", "k_proj", "v_proj")


def gradients(model, batch, device):
    """Return loss and gradient of the row, twice by each arm's policy."""
    found = {}
    for arm, name in ARMS.items():
        policy = policy_named(name, model)
        found[arm] = []
        with sharpen(model, policy) if policy is not None else nullcontext(), answering(model):
            for _ in range(2):
                model.zero_grad(set_to_none=True)
                with autocast(device):
                    loss = model(**batch)["loss"]
                loss.backward()
                reached = [weight for of, weight in model.named_parameters() if any(part in of for part in PROJECTIONS)]
                reached += learned_parameters(model)
                gradient = torch.cat([weight.grad.float().cpu().flatten() for weight in reached])
                found[arm].append({"loss": loss.item(), "gradient": gradient})
        remove_policy(model)
    model.zero_grad(set_to_none=True)
    return found


def judged(model, arm, kept, test, device):
    """Return the right tokens of each question by the weights and policy of one arm; plain's by PAPER too."""
    weights = torch.load(kept / "weights.pt", mmap=True)
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    policy = policy_named(ARMS[arm], model)
    restore_policy(policy, kept)
    right = {}
    for label, of in {arm: policy, **({"plain+paper": PAPER} if arm == "plain" else {})}.items():
        with on_policy(model, of), autocast(device):
            right[label] = right_tokens(model, test)
            right[label + ", batches of half"] = right_tokens(model, test, tokens=16384)
    remove_policy(model)
    return right


def main(name, seed):
    """Write both files, the second anew after each arm."""
    scale, device = (SCALES["full"], "cuda") if torch.cuda.is_available() else (SCALES["quick"], "cpu")
    loaded, texts = load_by_name(scale.model, seed=0, device=device), corpus(scale.corpus)
    train, test = (
        encode(loaded.tokenizer, [(example.question, example.answer) for example in of])
        for of in (texts.train[:3000], texts.test)
    )
    row = plan_rows([len(example.ids) for example in train], rows=1, width=WIDTH, seed=2)[0]
    batch = pack(train, row, width=WIDTH, of=len(row))
    batch = {key: value.to(device) if hasattr(value, "to") else value for key, value in batch.items()}
    torch.save(gradients(loaded.model, batch, device), f"gradients-{name}.pt")
    right = {}
    for arm in ARMS:
        kept = Path(os.environ["KEPT"]) / f"{arm}-seed{seed}"
        while not kept.is_dir():
            time.sleep(0.3)
        right |= judged(loaded.model, arm, kept, test, device)
        Path(f"judged-{name}.json").write_text(json.dumps(right))


main(*sys.argv[1:])
