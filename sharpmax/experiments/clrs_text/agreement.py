"""Check that one pass says what greedy decoding says: a model's own short answers, generated with a cache, then read.

Judging takes it for granted that each token decoding says is the likeliest in one pass too. In float32 it is; in half
precision a cache rounds otherwise than one pass does, and tokens that were tied but for rounding may change places. How
far apart they were says which it is: a rounding, or a fault.

`sharpmax reproduce clrs-text --only agreement` asks SmolLM2, on a processor, minutes for each precision.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sharpmax.core.policies import Policy
from sharpmax.experiments.clrs_text.arm import opened, short_ones
from sharpmax.experiments.clrs_text.study import Study
from sharpmax.flags import require_at_least
from sharpmax.hf.finetune.answer_batches import Encoded, encode
from sharpmax.hf.finetune.answer_model import generated, parting, right_tokens
from sharpmax.hf.finetune.judging import on_policy
from sharpmax.hf.finetune.trained_policy import policy_named
from sharpmax.hf.models.load_to_train import load_by_name
from sharpmax.report import Page, Table
from sharpmax.tasks.clrs_text.corpus import corpus

QUESTIONS = 48  # of the test, the short ones, spread evenly


def agreement(model: Any, examples: Sequence[Encoded], policy: Policy | None, dtype: torch.dtype) -> dict[str, Any]:
    """Return how many of the model's own answers to the questions one pass gives too, and how far the others are off.

    `apart` holds, for each of those, by how much the token that was said is behind the likeliest in one pass over that
    answer alone, 0 where it is the likeliest there, and the likeliest one's logit.
    """
    device = next(model.parameters()).device.type
    half = nullcontext() if dtype is torch.float32 else torch.autocast(device, dtype)
    with on_policy(model, policy), half, torch.no_grad():
        own = [Encoded(np.array([*e.ids[: e.start], *generated(model, e)], np.int32), e.start) for e in examples]
        right = right_tokens(model, own, tokens=4096)
        others = [e for e, count in zip(own, right, strict=True) if count < len(e.ids) - e.start]
        partings = [parting(model, e, e.ids[e.start :].tolist()) for e in others]
    said, apart = sum(len(e.ids) - e.start for e in own), [(abs(each.lead), each.logit) for each in partings]
    return {"asked": len(own), "agree": len(own) - len(apart), "tokens": said, "right": sum(right), "apart": apart}


def check_agreement(study: Study, out: str | Path, *, questions: int = QUESTIONS) -> dict[str, Any]:
    """Ask a study's model on a processor, plain and by the paper's rule, in float32 and bfloat16; kept with a page."""
    require_at_least(1, questions=questions)
    config = {**study.config, "arms": [], "seeds": [], "questions": questions}
    folder = opened(out, f"{study.name}-agreement", config, study.model, "cpu")
    metrics = {
        f"{dtype}, {policy}": folder.once(f"{dtype}-{policy}", partial(_asked, study, dtype, policy, questions))
        for dtype in ("float32", "bfloat16")
        for policy in ("none", "paper")
    }
    folder.finish(metrics)
    rows = [
        [
            name,
            f"{found['agree']} of {found['asked']}",
            f"{found['right']} of {found['tokens']}",
            ", ".join(f"{behind:.3f} at {logit:.1f}" for behind, logit in found["apart"]) or "-",
        ]
        for name, found in metrics.items()
    ]
    table = Table(["precision, policy", "answers that agree", "tokens that agree", "logits behind by"], rows)
    title = "CLRS-Text: does one pass say what greedy decoding says?"
    lead = f"{study.model}, its own answers to {questions} questions: generated with a cache, then read in one pass."
    Page(title, lead, [table]).save(folder.path)
    return metrics


def _asked(study: Study, dtype: str, policy: str, questions: int) -> dict[str, Any]:
    loaded = load_by_name(study.model, seed=0, device="cpu")
    texts = corpus(study.corpus).test
    test = encode(loaded.tokenizer, [(example.question, example.answer) for example in texts])
    examples = [test[i] for i in short_ones(test, questions)]
    return agreement(loaded.model, examples, policy_named(policy, loaded.model), getattr(torch, dtype))
