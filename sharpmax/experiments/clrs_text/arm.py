"""One arm, one seed: fine-tune the model with the arm's policy, and ask it every test question.

The record holds, for every test example in the corpus' order, how many tokens of its answer were right: every number of
the experiment follows from these.
"""

import dataclasses
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from sharpmax.core.cards import policy_to_json
from sharpmax.core.policies import PAPER, Policy
from sharpmax.experiments.clrs_text.study import ARMS, Study
from sharpmax.extras import extra
from sharpmax.hf.finetune.answer_batches import Encoded, encode
from sharpmax.hf.finetune.answer_model import generated, parting, right_tokens
from sharpmax.hf.finetune.judging import autocast, on_policy
from sharpmax.hf.finetune.train import finetune
from sharpmax.hf.finetune.trained_policy import policy_named
from sharpmax.hf.models.load_to_train import load_by_name
from sharpmax.runs.progress import report_as
from sharpmax.runs.provenance import provenance
from sharpmax.runs.run_folder import RunFolder
from sharpmax.tasks.clrs_text.corpus import Plan, corpus

with extra("hf"):
    import torch

SHORT = 24
"""Tokens of the longest answer that is also generated for real, a token at a time."""


def opened(
    out: str | Path, name: str, config: Mapping[str, Any], model: str, device: str, *, grows: str | None = None
) -> RunFolder:
    """Return the folder of a run; one that is not there yet is begun only if its model can be had on the device."""
    folder = RunFolder.planned(out, "clrs-text", name, config, grows=grows)
    if not (folder.path / "config.json").exists():
        load_by_name(model, seed=0, device=device)
    return folder.begin()


def run_arm(study: Study, arm: str, seed: int, out: Path, device: str, save_every: int) -> None:
    """Make the record of one arm and seed in the study's run folder, if it is not there."""
    folder = RunFolder.open(out, "clrs-text", study.name, study.config, grows="seeds")
    folder.once(f"{arm}-seed{seed}", lambda: train_and_judge(study, arm, seed, folder.path, device, save_every))


def train_and_judge(study: Study, arm: str, seed: int, folder: Path, device: str, save_every: int) -> dict[str, Any]:
    """Return the record of one arm and seed; checkpoints are kept in `folder` while it trains."""
    began = time.perf_counter()
    loaded = load_by_name(study.model, seed=seed, device=device)
    train, test = encoded(study.model, study.corpus)
    recipe = dataclasses.replace(study.recipe, seed=seed, save_every=save_every)
    checkpoints = folder / "training" / f"{arm}-seed{seed}"
    policy = policy_named(ARMS[arm], loaded.model)
    prepared = time.perf_counter()
    told = report_as(f"{arm}, seed {seed}")
    done = finetune(loaded.model, train, recipe, policy=policy, folder=checkpoints, report=told)
    trained = time.perf_counter()
    right = {"as trained": _right(loaded.model, policy, test, device)}
    if arm == "plain":
        right["paper at inference"] = _right(loaded.model, PAPER, test, device)
    agree = _agreement(loaded.model, policy, test, right["as trained"], study.generations, device)
    ended = time.perf_counter()
    told(
        f"{sum(r == len(e.ids) - e.start for r, e in zip(right['as trained'], test, strict=True))} of {len(test)} right"
    )
    shutil.rmtree(checkpoints, ignore_errors=True)
    return {
        "arm": arm,
        "seed": seed,
        "losses": done.losses,
        "tokens_per_second": round(done.tokens_per_second),
        "seconds": {
            "preparing": round(prepared - began, 1),
            "training": round(trained - prepared, 1),
            "judging": round(ended - trained, 1),
        },
        "generation": agree,
        "origin": {key: value for key, value in provenance().items() if key in ("versions", "device")},
        "policy": None if policy is None else policy_to_json(policy.freeze()),
        "right": right,
    }


def test_set(study: Study) -> dict[str, Any]:
    """Return what was asked: each example's algorithm, length and number of answer tokens, and the data's checksums."""
    texts = corpus(study.corpus)
    _, asked = encoded(study.model, study.corpus)
    return {
        "algorithm": [example.algorithm for example in texts.test],
        "length": [example.length for example in texts.test],
        "tokens": [len(example.ids) - example.start for example in asked],
        "sha256": texts.sha256,
        "left_out": texts.left_out,
        "train_examples": len(texts.train),
    }


@lru_cache(maxsize=1)
def encoded(model: str, plan: Plan) -> tuple[list[Encoded], list[Encoded]]:
    """Tokenise what is trained on and what is asked: once for all arms of a process."""
    tokenizer = load_by_name(model, seed=0, device="cpu").tokenizer  # before the texts, which may take minutes to make
    texts = corpus(plan)
    train, test = (
        encode(tokenizer, [(example.question, example.answer) for example in examples])
        for examples in (texts.train, texts.test)
    )
    return train, test


def short_ones(test: Sequence[Encoded], count: int) -> list[int]:
    """Return so many examples, by index, spread evenly over those with an answer short enough to generate."""
    short = [i for i, example in enumerate(test) if len(example.ids) - example.start <= SHORT]
    return [short[i * len(short) // count] for i in range(count)] if short else []


def _right(model: Any, policy: Policy | None, test: list[Encoded], device: str) -> list[int]:
    with on_policy(model, policy), autocast(device):
        return right_tokens(model, test)


def _agreement(
    model: Any, policy: Policy | None, test: list[Encoded], right: list[int], asked: int, device: str
) -> dict[str, Any]:
    """Generate some of the answers for real: how often is it right exactly where the one pass says so?

    Where it is not, `apart` says of which example, from which token on, and how near a tie it was.
    """
    chosen = short_ones(test, asked)
    exact, apart = 0, []
    with on_policy(model, policy), autocast(device), torch.no_grad():
        for i in chosen:
            example = test[i]
            said = generated(model, example)
            is_right = said == example.ids[example.start :].tolist()
            exact += is_right
            if is_right != (right[i] == len(example.ids) - example.start):
                apart.append({"example": i, **parting(model, example, said)._asdict()})
    return {"asked": len(chosen), "agree": len(chosen) - len(apart), "exact": exact, "apart": apart}
