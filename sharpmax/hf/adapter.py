"""A LoRA fitted exactly as `learn` fits a policy: the same questions, text, penalty and steps. The rival to beat.

It adds a low-rank change to the query and key projections of every layer: it, too, can only change where heads look.
"""

import copy

import torch
from torch.nn import functional

from sharpmax.extras import extra
from sharpmax.hf.answers import answer_loss
from sharpmax.hf.learn import Draw, Recipe, log_probabilities
from sharpmax.hf.load import LoadedModel

with extra("hf"):
    import peft


def learn_lora(
    loaded: LoadedModel, draw: Draw, text: torch.Tensor, recipe: Recipe, *, rank: int = 1, learning_rate: float = 2e-3
) -> LoadedModel:
    """Return a copy of the model with a fitted LoRA on its query and key projections; the model itself is unchanged."""
    torch.manual_seed(recipe.seed)
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["q_proj", "k_proj"])
    adapted = peft.get_peft_model(copy.deepcopy(loaded.model), config)
    rival = LoadedModel(f"{loaded.name}+lora{rank}", adapted.get_base_model(), loaded.tokenizer)
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(trained, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / recipe.steps)
    generator = torch.Generator().manual_seed(recipe.seed)
    for step in range(recipe.steps):
        window = min(recipe.windows[step % len(recipe.windows)], text.shape[1])
        start = int(torch.randint(text.shape[1] - window + 1, (1,), generator=generator))
        ids = text[:, start : start + window]
        optimiser.zero_grad()
        loss = answer_loss(rival, draw(step))
        if recipe.penalty:
            with torch.no_grad():
                plain = log_probabilities(loaded, ids)
            apart = functional.kl_div(log_probabilities(rival, ids), plain, log_target=True, reduction="sum")
            loss = loss + recipe.penalty * apart / plain[..., 0].numel()
        torch.autograd.backward(loss)
        optimiser.step()
        schedule.step()
    rival.model.eval()
    return rival
