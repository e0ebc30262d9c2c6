"""Train all seeds of one arm in one program; a killed training continues from its last checkpoint, to the same end."""

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi
from pathlib import Path
from typing import Any

from sharpmax.core.policies import Policy
from sharpmax.extras import extra
from sharpmax.files import atomic
from sharpmax.models.transformer import Params, Transformer, float32_products, loss_of
from sharpmax.tasks import recall

with extra("torch"):
    import numpy as np
    import torch
    from safetensors.torch import load_file, save
    from torch import Tensor

WARM_UP = 0.05  # share of the steps in which the learning rate rises
CLIP = 1.0  # largest norm of one seed's gradient
SAVE_EVERY = 1000  # steps


@dataclass(frozen=True)
class Recipe:
    """How a model is trained."""

    steps: int
    batch: int
    pairs: tuple[int, int]
    learning_rate: float = 1e-3
    weight_decay: float = 0.01


def train_seeds(
    model: Transformer,
    recipe: Recipe,
    policy: Policy,
    seeds: list[int],
    folder: Path,
    *,
    device: str,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> Params:
    """Return the parameters after all steps, read back if they were already trained."""
    params = {name: p.requires_grad_() for name, p in model.init(seeds, device).items()}
    optimiser = torch.optim.AdamW(list(params.values()), recipe.learning_rate, weight_decay=recipe.weight_decay)
    generators = [torch.Generator(device=device) for _ in seeds]
    with float32_products("high"):  # TF32 where there is a GPU: seven times as fast
        for step in range(_restore(folder, params, optimiser), recipe.steps):
            for group in optimiser.param_groups:
                group["lr"] = recipe.learning_rate * _rate(step, recipe.steps)
            loss = _step(model, policy, params, optimiser, _batch(recipe, seeds, generators, step))
            if (step + 1) % SAVE_EVERY == 0 or step + 1 == recipe.steps:
                report(step + 1, float(loss))
                _save(folder, step + 1, params, optimiser)
    return {name: p.detach() for name, p in params.items()}


def _batch(recipe: Recipe, seeds: list[int], generators: list[Any], step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens (seeds, batch, length), where to predict, and the answers: of the step and seed, nothing else."""
    low, high = recipe.pairs
    pairs = int(np.random.default_rng(step).integers(low, high + 1))
    drawn = []
    for seed, generator in zip(seeds, generators, strict=True):
        generator.manual_seed((seed << 32) + step)
        drawn.append(recall.draw(recipe.batch, pairs, generator=generator))
    return torch.stack([d.tokens for d in drawn]), drawn[0].predicted_at, torch.stack([d.answers for d in drawn])


def _step(
    model: Transformer,
    policy: Policy,
    params: Params,
    optimiser: torch.optim.Optimizer,
    batch: tuple[Tensor, Tensor, Tensor],
) -> Tensor:
    tokens, at, answers = batch
    # Sequences are short: all weights at once are cheaper than two passes over few keys.
    logits = model(params, tokens, lambda layer: policy, at=at, implementation="eager")
    losses = loss_of(logits, answers)
    optimiser.zero_grad(set_to_none=True)
    torch.autograd.backward(losses.sum())  # a seed's gradient is of its own loss alone
    _clip([p.grad for p in params.values() if p.grad is not None])
    optimiser.step()
    return losses.mean().detach()


def _clip(gradients: list[Tensor]) -> None:
    """Scale each seed's gradient so that its norm is at most `CLIP`."""
    squares = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0)
    factor = (CLIP / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.view(-1, *(1,) * (gradient.ndim - 1)))


def _rate(step: int, steps: int) -> float:
    """Return the share of the learning rate: a straight rise, then half a cosine down to 0."""
    rising = max(1, int(WARM_UP * steps))
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + cos(pi * (step - rising) / max(1, steps - rising)))


def _save(folder: Path, step: int, params: Params, optimiser: torch.optim.Optimizer) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    state = optimiser.state_dict()["state"]
    tensors = {f"params.{name}": p.detach() for name, p in params.items()}
    tensors |= {f"moments.{i}.{name}": tensor for i, of in state.items() for name, tensor in of.items()}
    atomic.write_bytes(folder / "training.safetensors", save(tensors, {"step": str(step)}))


def _restore(folder: Path, params: Params, optimiser: torch.optim.Optimizer) -> int:
    """Fill parameters and moments from the checkpoint and return the steps it has; 0 without one."""
    file = folder / "training.safetensors"
    if not file.exists():
        return 0
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        step = int((opened.metadata() or {})["step"])
    stored = load_file(file)
    with torch.no_grad():
        for name, parameter in params.items():
            parameter.copy_(stored[f"params.{name}"])
    state = optimiser.state_dict()
    for index, parameter in enumerate(params.values()):
        of = {key.split(".", 2)[2]: t for key, t in stored.items() if key.startswith(f"moments.{index}.")}
        state["state"][index] = {name: t if name == "step" else t.to(parameter.device) for name, t in of.items()}
    optimiser.load_state_dict(state)
    return step
