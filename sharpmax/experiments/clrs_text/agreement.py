"""Does one pass say what greedy decoding says? A model's own short answers: generated with a cache, then read at once.

Judging takes it for granted that each token decoding says is the likeliest in one pass too. In float32 it is; in half
precision a cache rounds otherwise than one pass does, and tokens that were tied but for rounding may change places. How
far apart they were says which it is: a rounding, or a fault.

`python -m sharpmax.experiments.clrs_text.agreement` asks SmolLM2, on a processor, minutes for each precision.
"""

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from sharpmax.core.policies import Policy
from sharpmax.experiments.clrs_text.arm import short_ones
from sharpmax.experiments.clrs_text.study import SCALES
from sharpmax.hf.finetune.answer_batches import Encoded, encode
from sharpmax.hf.finetune.answer_model import generated, parting, right_tokens
from sharpmax.hf.finetune.judging import on_policy
from sharpmax.hf.finetune.trained_policy import policy_named
from sharpmax.hf.models.load_to_train import load_by_name
from sharpmax.tasks.clrs_text.corpus import corpus


def agreement(model: Any, examples: Sequence[Encoded], policy: Policy | None, dtype: torch.dtype) -> dict[str, Any]:
    """Return how many of the model's own answers to the questions one pass gives too, and how far the others are off.

    `apart` holds, for each of those, by how much the token that was said is behind the likeliest in one pass over that
    answer alone, 0 where it is the likeliest there, and the likeliest one's logit.
    """
    device = next(model.parameters()).device.type
    half = nullcontext() if dtype is torch.float32 else torch.autocast(device, dtype)
    with on_policy(model, policy), half, torch.no_grad():
        own = [_answered(example, generated(model, example)) for example in examples]
        right = right_tokens(model, own, tokens=4096)
        others = [e for e, count in zip(own, right, strict=True) if count < len(e.ids) - e.start]
        partings = [parting(model, e, e.ids[e.start :].tolist()) for e in others]
    said, apart = sum(len(e.ids) - e.start for e in own), [(abs(each.lead), each.logit) for each in partings]
    return {"asked": len(own), "agree": len(own) - len(apart), "tokens": said, "right": sum(right), "apart": apart}


def _answered(example: Encoded, answer: Sequence[int]) -> Encoded:
    return Encoded(np.array([*example.ids[: example.start], *answer], dtype=np.int32), example.start)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print it for plain attention and the paper's, in float32 and bfloat16; what the user can mend is one line."""
    parser = argparse.ArgumentParser(prog="agreement", description="Does one pass say what greedy decoding says?")
    parser.add_argument("--model", default=SCALES["full"].model, help="who is asked (smollm2)")
    parser.add_argument("--questions", type=int, default=48, metavar="N", help="how many, of the full run's test (48)")
    options = parser.parse_args(arguments)
    try:
        if options.questions < 1:
            raise ValueError(f"expected at least 1 question, got {options.questions}")
        loaded = load_by_name(options.model, seed=0, device="cpu")
        texts = corpus(SCALES["full"].corpus).test
    except (ImportError, OSError, ValueError) as refusal:
        parser.exit(2, f"agreement: error: {' '.join(str(refusal).split())}\n")
    test = encode(loaded.tokenizer, [(example.question, example.answer) for example in texts])
    examples = [test[i] for i in short_ones(test, options.questions)]
    for dtype in (torch.float32, torch.bfloat16):
        for name in ("none", "paper"):
            found = agreement(loaded.model, examples, policy_named(name, loaded.model), dtype)
            apart = ", ".join(f"{behind:.3f} at {logit:.1f}" for behind, logit in found["apart"])
            print(
                f"{str(dtype).removeprefix('torch.')}, policy {name}: {found['agree']} of {found['asked']} answers and "
                f"{found['right']} of {found['tokens']} tokens agree"
                + (f"; logits behind by {apart}" if apart else ""),
                flush=True,
            )


if __name__ == "__main__":
    main()
