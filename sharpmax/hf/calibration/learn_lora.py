"""A LoRA fitted exactly as `learn` fits a policy: the same questions, text, allowance and steps. The rival to beat.

It adds a low-rank change to the query and key projections of every layer: it, too, can only change where heads look.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sharpmax.extras import extra
from sharpmax.hf.calibration.answers import answer_losses
from sharpmax.hf.calibration.descent import Draw, Recipe, descend, text_cost
from sharpmax.hf.calibration.learn import frozen
from sharpmax.hf.models.load import LoadedModel

with extra("hf"):
    import peft


def learn_lora(
    loaded: LoadedModel, draw: Draw, texts: Sequence[Tensor], recipe: Recipe, *, rank: int = 1
) -> tuple[LoadedModel, int]:
    """Return a copy of the model with a fitted LoRA on its query and key projections, and how many numbers it has.

    `recipe.learning_rate` is the LoRA's own; the model itself is unchanged.
    """
    torch.manual_seed(recipe.seed)
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["q_proj", "k_proj"])
    adapted = peft.get_peft_model(copy.deepcopy(loaded.model), config)
    rival = replace(loaded, name=f"{loaded.name}+lora{rank}", model=adapted.get_base_model())
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]

    def cost(ids: Tensor) -> Tensor:
        with torch.no_grad():
            plain = loaded.hidden(ids[0])
        return text_cost(loaded, plain, rival.hidden(ids[0]), ids, [recipe])

    def answers(questions: Any) -> Tensor:
        return answer_losses(rival, questions[0]).mean()[None]

    with frozen(loaded.model):
        descend(trained, answers, cost, [draw], texts, [recipe])
    rival.model.eval()
    return rival, sum(parameter.numel() for parameter in trained)
