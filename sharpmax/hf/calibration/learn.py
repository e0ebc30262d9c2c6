"""Learn a temperature for every head, everything else frozen: three numbers per head.

    log beta = clip(a + b·log(n/n0) + c·(H - 1))            per head, from a = b = c = 0: the plain model

The gradient flows through beta into a, b, c alone. What text costs holds the model to its own predictions wherever it
is not asked anything, so what is learned is where to look, not what to say.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sharpmax.core.policies import LogLinear, PerLayer
from sharpmax.hf.calibration.answers import answer_losses
from sharpmax.hf.calibration.descent import Draw, Recipe, descend, text_cost
from sharpmax.hf.calibration.descent_state import Course
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.sharpen.layers import attention_layers, layer_count
from sharpmax.hf.sharpen.switch import sharpen


@dataclass(frozen=True)
class Learned:
    """The policy, and how the descent went."""

    policy: PerLayer
    course: Course


def learn(
    loaded: LoadedModel,
    draw: Draw,
    texts: Sequence[Tensor],
    recipe: Recipe = Recipe(),  # noqa: B008
    *,
    keep: Path | None = None,
) -> Learned:
    """Fit a `LogLinear` to every head; `texts` are ids (1, n) to hold the model to itself on, taken in turn.

    The model's weights are neither changed nor given gradients. A killed fit continues from the file `keep`.
    """
    return learn_side_by_side(loaded, [draw], texts, [recipe], keep=keep)[0]


def learn_side_by_side(
    loaded: LoadedModel,
    draws: Sequence[Draw],
    texts: Sequence[Tensor],
    recipes: Sequence[Recipe],
    *,
    keep: Path | None = None,
) -> list[Learned]:
    """Fit several policies in the passes of one, each by its own recipe and on its own questions.

    Recipes may differ in what they learn, penalty, allowance and seed.
    """
    device = loaded.model.device
    runs = len(recipes)
    parameters = {
        name: [torch.zeros(runs, heads, 1, device=device, requires_grad=True) for heads in query_heads(loaded.model)]
        for name in "abc"
    }
    asked_of = {name: torch.tensor([[[float(name in r.learned)]] for r in recipes], device=device) for name in "abc"}

    def policy(rows: int) -> PerLayer:
        """One policy a run, each for as many rows of the batch."""
        columns = {name: [(p * asked_of[name]).repeat_interleave(rows, 0) for p in parameters[name]] for name in "abc"}
        return _per_layer(columns, recipes[0])

    def answers(questions: Any) -> Tensor:
        with sharpen(loaded.model, policy(len(questions[0]))):
            return answer_losses(loaded, [q for of_run in questions for q in of_run]).view(runs, -1).mean(1)

    def cost(ids: Tensor) -> Tensor:
        with torch.no_grad():
            plain = loaded.hidden(ids.flatten(0, 1))
        with sharpen(loaded.model, policy(ids.shape[1])):
            sharpened = loaded.hidden(ids.flatten(0, 1))
        return text_cost(loaded, plain, sharpened, ids, recipes)

    with frozen(loaded.model):
        trained = [tensor for name in "abc" for tensor in parameters[name]]
        courses = descend(trained, answers, cost, draws, texts, recipes, keep)
    found = []
    for run, course in enumerate(courses):
        own = {name: [(p * asked_of[name])[run] for p in parameters[name]] for name in "abc"}
        found.append(Learned(_per_layer(own, recipes[run]).freeze(), course))
    return found


def query_heads(model: Any) -> list[int]:
    """Return how many query heads each layer has, by watching two tokens pass.

    Raises:
        NotImplementedError: a layer that text passes by, as those of images: nothing could be fitted to it.
    """
    seen: dict[int, int] = {}
    with torch.no_grad(), sharpen(model, observer=lambda layer, stats: seen.update({layer: stats.entropy.shape[1]})):
        model.base_model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=model.device))
    layers = attention_layers(model)
    if (passed := next((layer.name for layer in layers if layer.index not in seen), None)) is not None:
        raise NotImplementedError(
            f"{type(model).__name__} does not run {passed} on text, so no temperature per head can be fitted to it; "
            "fit one per layer (method search)"
        )
    return [seen[layer] for layer in range(layer_count(layers))]


def _per_layer(columns: dict[str, list[Tensor]], recipe: Recipe) -> PerLayer:
    of_layers = zip(*(columns[name] for name in "abc"), strict=True)
    return PerLayer(tuple(LogLinear(a=a, b=b, c=c, n0=recipe.n0, limit=recipe.limit) for a, b, c in of_layers))


class frozen:  # noqa: N801 - a block, used as one
    """A block in which no weight of the model asks for a gradient; as before afterwards."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._asked = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def __enter__(self) -> None:
        for parameter in self._asked:
            parameter.requires_grad_(False)

    def __exit__(self, *_: object) -> None:
        for parameter in self._asked:
            parameter.requires_grad_(True)
