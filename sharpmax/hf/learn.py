"""Learn a temperature for every head, everything else frozen: three numbers a head.

    log beta = clip(a + b·log(n/n0) + c·(H - 1))            per head, from a = b = c = 0: the plain model
    loss     = answers + penalty · KL(plain model ‖ sharpened model, on text)

The gradient flows through beta into a, b, c alone. The penalty holds the model to its own predictions wherever it is
not asked anything, so what is learned is where to look, not what to say.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sharpmax.core.policies import LogLinear, PerLayer
from sharpmax.hf.answers import Question, answer_loss
from sharpmax.hf.layers import attention_layers, layer_count
from sharpmax.hf.load import LoadedModel
from sharpmax.hf.sharpen import sharpen

Draw = Callable[[int], Sequence[Question]]
"""The questions of a step."""


@dataclass(frozen=True)
class Recipe:
    """How to learn.

    Attributes:
        learned: which of a, b, c to learn; the others stay 0.
        steps, learning_rate: Adam, falling linearly to 0.
        penalty: the weight of the divergence from the plain model on text.
        windows: lengths of the text of a step, taken in turn.
        n0, limit: as in `LogLinear`.
    """

    learned: str = "abc"
    steps: int = 150
    learning_rate: float = 0.02
    penalty: float = 10.0
    windows: tuple[int, ...] = (256, 1024)
    n0: float = 128.0
    limit: float = 1.5
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.learned or set(self.learned) - set("abc"):
            raise ValueError(f"expected to learn some of a, b, c, got {self.learned!r}")
        if self.steps < 1 or self.penalty < 0 or not self.windows or self.learning_rate <= 0:
            raise ValueError(f"expected steps and windows, a positive rate and a penalty of 0 or more, got {self}")


@dataclass(frozen=True)
class Learned:
    """The policy, and the two parts of the loss at every step."""

    policy: PerLayer
    answers: list[float]
    divergence: list[float]


def learn(loaded: LoadedModel, draw: Draw, text: Tensor, recipe: Recipe = Recipe()) -> Learned:  # noqa: B008
    """Fit a `LogLinear` to every head; `text` (1, n) are ids to hold the model to itself on.

    The model's weights are neither changed nor given gradients.
    """
    heads = query_heads(loaded)
    device = loaded.model.device
    parameters = {name: [torch.zeros(h, 1, device=device) for h in heads] for name in "abc"}
    trained = [tensor.requires_grad_() for name in recipe.learned for tensor in parameters[name]]
    optimiser = torch.optim.Adam(trained, lr=recipe.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / recipe.steps)
    generator = torch.Generator().manual_seed(recipe.seed)
    answers, divergence = [], []
    with frozen(loaded.model):
        for step in range(recipe.steps):
            policy = _policy(parameters, recipe)
            window = min(recipe.windows[step % len(recipe.windows)], text.shape[1])
            start = int(torch.randint(text.shape[1] - window + 1, (1,), generator=generator))
            ids = text[:, start : start + window]
            optimiser.zero_grad()
            with sharpen(loaded.model, policy):
                asked = answer_loss(loaded, draw(step))
            torch.autograd.backward(asked)
            apart = torch.zeros(())
            if recipe.penalty:
                apart = divergence_from_plain(loaded, ids, policy)
                torch.autograd.backward(recipe.penalty * apart)
            optimiser.step()
            schedule.step()
            answers.append(float(asked.detach()))
            divergence.append(float(apart.detach()))
    return Learned(_policy(parameters, recipe).freeze(), answers, divergence)


def divergence_from_plain(loaded: LoadedModel, ids: Tensor, policy: Any) -> Tensor:
    """Return the mean KL(plain ‖ sharpened) of the next token over ids (1, n), nats, differentiable in the policy."""
    with torch.no_grad():
        plain = log_probabilities(loaded, ids)
    with sharpen(loaded.model, policy):
        sharpened = log_probabilities(loaded, ids)
    return functional.kl_div(sharpened, plain, log_target=True, reduction="sum") / plain[..., 0].numel()


def query_heads(loaded: LoadedModel) -> list[int]:
    """Return how many query heads each layer has, by watching one token pass."""
    seen: dict[int, int] = {}
    with torch.no_grad(), sharpen(loaded.model, probe=lambda layer, q, k, options: seen.update({layer: q.shape[1]})):
        loaded.model.base_model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=loaded.model.device))
    return [seen[layer] for layer in range(layer_count(attention_layers(loaded.model)))]


def _policy(parameters: dict[str, list[Tensor]], recipe: Recipe) -> PerLayer:
    of_layers = zip(*(parameters[name] for name in "abc"), strict=True)
    return PerLayer(tuple(LogLinear(a=a, b=b, c=c, n0=recipe.n0, limit=recipe.limit) for a, b, c in of_layers))


def log_probabilities(loaded: LoadedModel, ids: Tensor) -> Tensor:
    """Return the log-probability of every next token, (1, n, vocabulary)."""
    hidden = loaded.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    return functional.log_softmax(loaded.model.get_output_embeddings()(hidden).float(), dim=-1)


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
