"""How a fine-tuned model is judged: under the policy and in the precision it was trained with."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from warnings import catch_warnings, simplefilter

from sharpmax.core.policies import Policy
from sharpmax.core.softmax import SilentPolicyWarning
from sharpmax.extras import extra
from sharpmax.hf.finetune.answer_model import innermost
from sharpmax.hf.sharpen.switch import sharpen

with extra("hf"):
    import torch


@contextmanager
def on_policy(model: Any, policy: Policy | None) -> Iterator[None]:
    """Inside this block the model attends by the policy, if there is one; where it is silent is no news here."""
    if policy is None:
        yield
        return
    with catch_warnings():
        simplefilter("ignore", SilentPolicyWarning)
        with sharpen(innermost(model), policy):
            yield


def autocast(device: str) -> AbstractContextManager[Any]:
    """Judge in the precision that was trained in: bfloat16 products on a GPU that can, else as the weights are."""
    half = device.startswith("cuda") and torch.cuda.is_bf16_supported()
    return torch.autocast("cuda", torch.bfloat16) if half else nullcontext()
