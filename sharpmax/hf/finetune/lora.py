"""A LoRA on every linear layer of a model but its head: what is trained where the weights themselves are too many."""

from typing import Any

from sharpmax.extras import extra
from sharpmax.hf.finetune.trained_policy import learned_parameters

with extra("hf"):
    import torch


def with_lora(model: Any, rank: int, *, seed: int) -> Any:
    """Return the model under PEFT with a LoRA of this rank; what its policy learns goes on learning.

    Raises:
        ValueError: a rank below 1.
    """
    if rank < 1:
        raise ValueError(f"expected a LoRA of rank 1 or more, got {rank}")
    with extra("hf"):
        import peft  # slow to import, and only LoRA needs it
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapted = peft.get_peft_model(
            model, peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
        )
    for parameter in learned_parameters(adapted):
        parameter.requires_grad_()  # PEFT froze it with the weights
    return adapted
