"""Train all seeds of one model in one program; a killed training continues from its last checkpoint, to the same end.

Every step has the same shapes: sizes are mixed within a batch and padded at the end. So one compiled layer serves all
layers and steps. Data, schedule and optimiser live on the device, and nothing waits for it between two reports.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from math import cos, inf, isfinite, pi
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, Protocol

from sharpmax.extras import extra
from sharpmax.files import atomic
from sharpmax.models.transformer import PRECISIONS, Precision, Transformer, float32_products, loss_of
from sharpmax.runs.progress import stage
from sharpmax.tasks.sized import Batch, Task
from sharpmax.torch.device import device_or_best

with extra("torch"):
    import torch
    from safetensors import safe_open
    from safetensors.torch import save
    from torch import Tensor
    from torch.nn import functional

WARM_UP = 0.05  # share of the steps in which the learning rate rises
CLIP = 1.0  # largest norm of one seed's gradient
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # of AdamW
SAVE_EVERY = 2000  # steps
REPORT_EVERY = 100  # steps
DRAWN_AT_ONCE = 32  # steps whose data are drawn together
SMALL = 500_000  # parameters of a model below which one thread is the default
MULTIPLE = 80  # of every length: fast kernels want eights, and a layer is compiled once for all tasks


@dataclass(frozen=True)
class Recipe:
    """How a model is trained."""

    steps: int = 5000
    batch: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.01


def must_be_rates(rates: Iterable[float]) -> None:
    """Raise ValueError for a learning rate that is not above 0, or not finite."""
    if wrong := [rate for rate in rates if not 0 < rate < inf]:
        raise ValueError(f"expected learning rates above 0, got {wrong[0]}")


def best_rate(rates: Sequence[float], losses: Sequence[float]) -> tuple[float | None, dict[str, float | None]]:
    """Return the rate with the lowest held-out loss, and the loss of each; None is not finite, or that of every rate.

    >>> best_rate([0.001, 0.01, 0.1], [0.5, 0.25, float("nan")])
    (0.01, {'0.001': 0.5, '0.01': 0.25, '0.1': None})
    """
    finite = {rate: loss for rate, loss in zip(rates, losses, strict=True) if isfinite(loss)}
    return min(finite, key=finite.__getitem__, default=None), {f"{rate:g}": finite.get(rate) for rate in rates}


@dataclass(frozen=True)
class Hardware:
    """Where and how it is computed: nothing here changes what is computed but by rounding."""

    device: str = "cpu"
    training: str = "float32"  # of PRECISIONS
    asking: str = "float32"  # of PRECISIONS
    compiled: bool = False
    threads: int | None = None
    """Threads of a CPU; None leaves PyTorch's number."""

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"expected threads of at least 1, got {self.threads}")
        for precision in (self.training, self.asking):
            if precision not in PRECISIONS:
                raise ValueError(f"expected a precision among {', '.join(PRECISIONS)}, got {precision!r}")

    @classmethod
    def of(
        cls,
        device: str | None = None,
        precision: str | None = None,
        compiled: bool | None = None,
        threads: int | None = None,
    ) -> "Hardware":
        """Return the choice for a device, a GPU if there is one: there bfloat16, asked in TF32, and compiled."""
        device = device_or_best(device)
        on_gpu = device.startswith("cuda")
        training = precision or ("bf16" if on_gpu else "float32")
        asking = "tf32" if training == "bf16" else training
        return cls(device, training, asking, on_gpu if compiled is None else compiled, threads)

    @contextmanager
    def with_threads(self, parameters: int) -> Iterator[None]:
        """Compute inside this block with `threads`; by default with one for small models on a CPU.

        The work of a small model is split into pieces so small that a second thread waits more than it computes.
        """
        before = torch.get_num_threads()
        small = self.device == "cpu" and parameters < SMALL
        torch.set_num_threads(self.threads or (1 if small else before))
        try:
            yield
        finally:
            torch.set_num_threads(before)


class State(NamedTuple):
    """All seeds' parameters and AdamW's two moments, each (seeds, parameters)."""

    params: Tensor
    mean: Tensor
    square: Tensor


class Source(Protocol):
    """Data that are no `Task`: it yields the batches of every step itself."""

    def batches(
        self, recipe: Recipe, seeds: list[int], device: torch.device, first: int
    ) -> Iterator[tuple[int, tuple[Batch, ...]]]:
        """Yield every step from `first` on, and its batches, whose losses add up."""


Report = Callable[[int, float, float], None]
"""Gets the step, the mean loss, and the milliseconds per step since the last report."""


def train_seeds(
    model: Transformer,
    task: Task | Source,
    recipe: Recipe,
    seeds: list[int],
    folder: Path,
    *,
    hardware: Hardware,
    rates: list[float] | None = None,
    report: Report = lambda step, loss, milliseconds: None,
    name: str = "training",
) -> Tensor:
    """Return the parameters (seeds, parameters) after all steps, read back if they were already trained.

    `rates` are learning rates, one per seed, instead of the recipe's. `name` is of the stage that shows its progress.

    Raises:
        FloatingPointError: a loss or a gradient that is not finite; with `rates`, those of every rate.
    """
    params = model.init(seeds, hardware.device)
    state = State(params, torch.zeros_like(params), torch.zeros_like(params))
    first = _restore(folder, state)
    if first == recipe.steps:
        return state.params
    precision = PRECISIONS[hardware.training]
    own = torch.tensor(rates or [recipe.learning_rate] * len(seeds), device=params.device)[:, None]
    schedule = torch.tensor([_schedule(step, recipe.steps) for step in range(recipe.steps)], device=params.device)
    block = _compiled(replace(model, vocabulary=1)) if hardware.compiled else model.block
    with float32_products(precision.float32), stage(name, recipe.steps) as advance:
        advance(first)
        since = perf_counter()
        for step, batches in _steps(task, recipe, seeds, params.device, first):
            losses, gradient = _gradient(model, block, state.params, batches, precision, step)
            _update(state, gradient, own * schedule[step, 0], recipe.weight_decay, *schedule[step, 1:].unbind())
            done = step + 1
            told = done % REPORT_EVERY == 0 or done == recipe.steps
            if told or params.device.type == "cpu":  # elsewhere it would wait for the device
                _require_finite(model, losses, gradient, seeds, done, any_will_do=rates is not None)
            advance()
            if told:
                mean = float(losses.mean())
                advance(0, note=f"loss {mean:.3g}")
                elapsed, since = perf_counter() - since, perf_counter()
                report(done, mean, 1000 * elapsed / ((done - first) % REPORT_EVERY or REPORT_EVERY))
            if done % SAVE_EVERY == 0 or done == recipe.steps:
                _save(folder, done, state)
    return state.params


@lru_cache(maxsize=1)
def _compiled(model: Transformer) -> Callable[..., Tensor]:
    """Return the compiled layer, kept from one task to the next; a layer does not know the vocabulary."""
    torch.compiler.reset()  # each model counts as a variant of one function, and those are limited
    compiled: Callable[..., Tensor] = torch.compile(model.block, dynamic=False, fullgraph=True)
    return compiled


def _steps(
    task: Task | Source, recipe: Recipe, seeds: list[int], device: torch.device, first: int
) -> Iterator[tuple[int, tuple[Batch, ...]]]:
    """Yield every step from `first` on, and its batches; a task has one."""
    if isinstance(task, Task):
        yield from ((step, (batch,)) for step, batch in _batches(task, recipe, seeds, device, first))
    else:
        yield from task.batches(recipe, seeds, device, first)


def _drawing(seed: int, start: int, device: torch.device) -> int:
    """Return the number that seeds a drawing: of 64 bits, or of the 32 that a CPU's generator looks at."""
    if device.type == "cpu":
        return (start + seed * 2654435761) % 2**32  # far apart, whatever the steps
    return (seed << 32) + start


def _batches(
    task: Task, recipe: Recipe, seeds: list[int], device: torch.device, first: int
) -> Iterator[tuple[int, Batch]]:
    """Yield every step from `first` on, and its batch: tokens (seeds, batch, length) of the seed and step alone."""
    generator = torch.Generator(device=device)
    padding = -task.length_of(task.trained[1]) % MULTIPLE
    for start in range(first - first % DRAWN_AT_ONCE, recipe.steps, DRAWN_AT_ONCE):
        drawn = []
        for seed in seeds:
            generator.manual_seed(_drawing(seed, start, device))
            drawn.append(task.draw(DRAWN_AT_ONCE * recipe.batch, task.trained, generator=generator))
        tokens = torch.stack([functional.pad(one.tokens, (0, padding)) for one in drawn])
        at = torch.stack([one.at for one in drawn])
        for step in range(max(start, first), min(start + DRAWN_AT_ONCE, recipe.steps)):
            begin = (step - start) * recipe.batch
            yield step, Batch(tokens[:, begin : begin + recipe.batch], at[:, begin : begin + recipe.batch])


def _gradient(
    model: Transformer,
    block: Callable[..., Tensor],
    params: Tensor,
    batches: tuple[Batch, ...],
    precision: Precision,
    step: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return each seed's loss, and the gradient (seeds, parameters): each seed's is of its own loss alone."""
    total, gradient = params.new_zeros(len(params)), torch.zeros_like(params)
    for batch in batches:
        leaf = params.detach().requires_grad_()
        # Sequences are short: all weights at once are cheaper than two passes over few keys.
        logits = model(
            model.named(leaf),
            batch.tokens,
            at=batch.at,
            places=model.places(batch.tokens, step),
            precision=precision,
            block=block,
            streaming=False,
        )
        losses = loss_of(logits, batch.answers, batch.weights)
        gradient += torch.autograd.grad(losses.sum(), leaf)[0]
        total += losses.detach()
    return total, gradient


def _require_finite(
    model: Transformer, losses: Tensor, gradient: Tensor, seeds: list[int], step: int, *, any_will_do: bool
) -> None:
    """Raise FloatingPointError where a seed's loss or gradient is not finite, or those of all seeds."""
    finite = losses.isfinite() & gradient.isfinite().all(1)
    if finite.any() if any_will_do else finite.all():
        return
    failed = [seed for seed, good in zip(seeds, finite.tolist(), strict=True) if not good]
    which = "at every learning rate" if any_will_do else f"of seed {', '.join(map(str, failed))}"
    bad_losses = losses[~finite]
    if not bad_losses.isfinite().all():
        raise FloatingPointError(f"the loss {which} is {float(bad_losses[~bad_losses.isfinite()][0])} at step {step}")
    names = [n for n, part in model.named(gradient).items() if not part.isfinite().all()]
    raise FloatingPointError(
        f"the gradient {which} is not finite at step {step}: that of {', '.join(names[:3])}"
        f"{' and others' if names[3:] else ''}"
    )


@torch.no_grad()
def _update(
    state: State, gradient: Tensor, rates: Tensor, weight_decay: float, correction1: Tensor, correction2: Tensor
) -> None:
    """Clip each seed's gradient to the norm `CLIP`, and make a step of AdamW in place."""
    params, mean, square = state
    norm = gradient.square().sum(1, keepdim=True).sqrt()
    gradient = gradient * (CLIP / (norm + 1e-6)).clamp(max=1.0)
    mean.lerp_(gradient, 1 - BETA1)
    square.lerp_(gradient.square(), 1 - BETA2)
    params.mul_(1 - rates * weight_decay)
    params.sub_(rates * (mean / correction1) / ((square / correction2).sqrt() + EPSILON))


def _schedule(step: int, steps: int) -> tuple[float, float, float]:
    """Return the share of the learning rate (a rise, then half a cosine down to 0), and AdamW's corrections."""
    rising = max(1, int(WARM_UP * steps))
    falling = 0.5 * (1 + cos(pi * (step - rising) / max(1, steps - rising)))
    share = (step + 1) / rising if step < rising else falling
    return share, 1 - BETA1 ** (step + 1), 1 - BETA2 ** (step + 1)


def _save(folder: Path, step: int, state: State) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(folder / "training.safetensors", save(state._asdict(), {"step": str(step)}))


def _restore(folder: Path, state: State) -> int:
    """Fill parameters and moments from the checkpoint and return the steps it has; 0 without one."""
    file = folder / "training.safetensors"
    if not file.exists():
        return 0
    with safe_open(file, framework="pt") as opened:
        for name, tensor in state._asdict().items():
            tensor.copy_(opened.get_tensor(name))
        return int((opened.metadata() or {})["step"])
