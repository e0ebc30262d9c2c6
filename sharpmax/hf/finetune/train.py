"""Fine-tune a causal model on questions and answers, with a policy in every head: Hugging Face's Trainer, a few habits.

The data of a step is settled beforehand (`answer_batches`), only answers cost logits (`answer_model`), and a checkpoint
counts only once it is whole, so a run that was killed at any moment continues and ends as if it had not been.
A step too large for the memory goes in several rows, whose gradients add up.
One GPU, a CPU, or several processes under `accelerate launch`: the same call.
"""

import hashlib
import json
import math
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax import defaults
from sharpmax.core.policies import Policy
from sharpmax.extras import MissingExtraError, extra
from sharpmax.files import atomic
from sharpmax.files.untrusted import read_json
from sharpmax.hf.finetune.alone import alone_in
from sharpmax.hf.finetune.answer_batches import Batch, Encoded, pack, plan_rows
from sharpmax.hf.finetune.answer_model import answering, innermost
from sharpmax.hf.finetune.compiled import compiled
from sharpmax.hf.finetune.packing import require_apart, round_up
from sharpmax.hf.finetune.trained_policy import learned_parameters, remove_policy, restore_policy, save_policy
from sharpmax.hf.models.head import require_known_head
from sharpmax.hf.models.quiet import quiet
from sharpmax.hf.sharpen.switch import sharpen

with extra("hf"):
    import torch
    import transformers
    from torch.utils.data import SequentialSampler

WHOLE = "whole"
"""The file that says a checkpoint was written to its end, and how many bytes each of its files holds."""

RUN, INDIFFERENT = "run.json", ("compile", "save_every", "log_every")
"""The file that says which run the checkpoints of a folder are of, and the settings in which its parts may differ."""


@dataclass(frozen=True)
class Recipe:
    """How to fine-tune.

    Attributes:
        steps, tokens: how many steps, and tokens per step and process.
        at_once: tokens that pass through the model together, which decide its memory; all of a step unless given.
        learning_rate: AdamW's, warmed up over the first 5 % of the steps, then falling by a cosine to 0.
        policy_rate: the learning rate of what the policy learns: a few hundredths of SSMax's slope per step at most.
        compile: let torch compile the model's blocks: faster on a GPU, after a minute.
        bf16: products in bfloat16, weights in float32; by default where the device is a GPU that can.
        save_every: steps from checkpoint to checkpoint; 0 saves none.
    """

    steps: int = defaults.TRAIN_STEPS
    tokens: int = defaults.TRAIN_TOKENS
    learning_rate: float = defaults.TRAIN_RATE
    policy_rate: float = defaults.POLICY_RATE
    weight_decay: float = 0.01
    at_once: int | None = None
    compile: bool = False
    bf16: bool | None = None
    save_every: int = defaults.SAVE_EVERY
    log_every: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("tokens", 64), ("save_every", 0), ("log_every", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"expected {name} to be at least {least}, got {getattr(self, name)}")
        if self.at_once is not None and self.at_once < 64:
            raise ValueError(f"expected at_once to be at least 64, got {self.at_once}")
        for name in ("learning_rate", "policy_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"expected a {name} above 0, got {getattr(self, name)}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"expected a seed from 0 to {2**32 - 1}, got {self.seed}")

    @property
    def rows(self) -> int:
        """Rows per step."""
        return -(-self.tokens // (self.at_once or self.tokens))

    @property
    def width(self) -> int:
        """Tokens per row."""
        return round_up(-(-self.tokens // self.rows))


@dataclass(frozen=True)
class Finetuned:
    """The result: the loss at logged steps, and tokens per second of this process, not counting padding.

    Under FSDP each process is left with parts of the model; the first one then gets all of its `weights` here.
    """

    losses: list[tuple[int, float]]
    tokens_per_second: float
    weights: dict[str, torch.Tensor] | None = None


def finetune(
    model: Any,
    examples: Sequence[Encoded],
    recipe: Recipe = Recipe(),  # noqa: B008
    *,
    policy: Policy | None = None,
    folder: str | Path,
    tensorboard: bool = False,
    report: Callable[[str], None] | None = None,
) -> Finetuned:
    """Train the model (bare or under PEFT) in place; continues from the newest whole checkpoint in `folder`.

    It then says so, and the weights are that checkpoint's, whatever those of the model were.

    `policy` is on in every attention layer while it trains, and off again afterwards: `sharpen(model, policy)` to use
    it. `report` gets a line every `log_every` steps: step, loss, speed, time left; and one where a run goes on.

    Raises:
        NotImplementedError: a policy that learns, under FSDP; or a model in which packed examples would reach one
            another, as through a state-space layer.
        ValueError: an example longer than a row, a folder that another process trains in or that holds checkpoints of
            another run, or a loss that is no longer a number.
    """
    if tensorboard:
        _require_tensorboard()
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true" and learned_parameters(model):
        raise NotImplementedError("a policy cannot learn under FSDP, which replaces its parameters; use DDP")
    folder = Path(folder)
    sizes = [len(example.ids) for example in examples]
    device = innermost_device(model)
    bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported() if recipe.bf16 is None else recipe.bf16
    processes = int(transformers.TrainingArguments(str(folder), use_cpu=device.type == "cpu").world_size)
    rows = plan_rows(sizes, rows=recipe.steps * processes * recipe.rows, width=recipe.width, seed=recipe.seed)
    steps = [rows[at : at + recipe.rows] for at in range(0, len(rows), recipe.rows)]
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=recipe.steps, per_device_train_batch_size=1, learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay, warmup_steps=max(1, recipe.steps // 20), lr_scheduler_type="cosine",
        optim="adamw_torch_fused" if device.type == "cuda" else "adamw_torch", max_grad_norm=1.0, bf16=bf16,
        seed=recipe.seed, use_cpu=device.type == "cpu", dataloader_num_workers=0,
        dataloader_pin_memory=device.type == "cuda", remove_unused_columns=False, disable_tqdm=True,
        save_strategy="steps" if recipe.save_every else "no", save_steps=recipe.save_every or 500, save_total_limit=2,
        logging_steps=min(recipe.log_every, recipe.steps), logging_nan_inf_filter=False,  # it waits for every loss
        report_to=["tensorboard"] if tensorboard else [],
        # A copy that blocks would wait for the step before, and the device then for the host.
        accelerator_config={"even_batches": False, "non_blocking": device.type == "cuda"},
    )  # fmt: skip
    pace = _Pace(recipe, [sum(sizes[i] for row in step for i in row) for step in steps], processes, report)
    require_known_head(innermost(model))
    require_apart(innermost(model))
    sharpened = sharpen(model, policy) if policy is not None else None
    try:
        blocks = compiled(model) if recipe.compile else nullcontext()
        held = alone_in(folder) if is_first_process() else nullcontext()
        with held, answering(model), blocks, quiet(), warnings.catch_warnings():
            begun = newest_whole(folder)
            _must_be_the_run_of(folder, _identity(recipe, policy, examples), begun is not None)
            if begun is not None and is_first_process():
                pace.report(f"going on from {begun}, with its weights")
            warnings.filterwarnings("ignore", module="torch.optim.lr_scheduler")
            trainer = _AnswerTrainer(
                model,
                arguments,
                train_dataset=_Steps(examples, steps, recipe.width),
                data_collator=lambda items: items[0],
                callbacks=[pace],
            )
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.policy, trainer.policy_rate = policy, recipe.policy_rate
            trainer.train(resume_from_checkpoint=begun)
            fsdp = trainer.is_fsdp_enabled
            weights = trainer.accelerator.get_state_dict(trainer.model_wrapped) if fsdp else None
    finally:
        if sharpened is not None:
            sharpened.restore()
        remove_policy(model)
    losses = [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    return Finetuned(losses, pace.speed, weights)


def _identity(recipe: Recipe, policy: Policy | None, examples: Sequence[Encoded]) -> dict[str, Any]:
    """Return what decides the numbers of a run, as JSON; the model's weights are the checkpoint's."""
    data = hashlib.sha256()
    for example in examples:
        data.update(np.asarray([example.start, len(example.ids), *example.ids], np.int64).tobytes())
        if example.places is not None:
            data.update(np.asarray(example.places, np.int64).tobytes())
    frozen = policy.freeze() if isinstance(policy, Policy) and is_dataclass(policy) else type(policy).__qualname__
    decides = {name: value for name, value in asdict(recipe).items() if name not in INDIFFERENT}
    told = hashlib.sha256(repr(frozen).encode()).hexdigest()
    return {**decides, "policy": told, "examples": data.hexdigest()}


def _must_be_the_run_of(folder: Path, wanted: dict[str, Any], has_checkpoint: bool) -> None:
    """Raise ValueError if the checkpoints in the folder are of another run; those of earlier versions do not tell."""
    file = folder / RUN
    if has_checkpoint and file.exists():
        found = read_json(file, expected="what a run was started with", advice="choose another folder")
        if differing := sorted(name for name in wanted if found.get(name) != wanted[name]):
            raise ValueError(
                f"{folder} holds checkpoints of a run with another {', '.join(differing)}: it cannot be continued with "
                "these; choose another folder, or delete that one"
            )
    elif is_first_process():
        atomic.write_json(file, wanted)


def newest_whole(folder: Path) -> str | None:
    """Return the newest checkpoint that was written to its end; those that were not are removed, by one process."""
    of_step = {path: path.name.partition("-")[2] for path in folder.glob("checkpoint-*")}
    found = sorted((path for path, step in of_step.items() if step.isdigit()), key=lambda path: int(of_step[path]))
    whole = [path for path in found if _is_whole(path)]
    if is_first_process():
        for broken in set(found) - set(whole):
            shutil.rmtree(broken)
    return str(whole[-1]) if whole else None


def _is_whole(checkpoint: Path) -> bool:
    try:
        sizes: dict[str, int] = json.loads((checkpoint / WHOLE).read_text(encoding="utf-8"))
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def _require_tensorboard() -> None:
    try:
        import torch.utils.tensorboard  # noqa: F401 - it imports the package, which torch does not bring
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"{error.name} is not installed; it comes with: pip install tensorboard") from error


def is_first_process() -> bool:
    """Tell whether this process is the one of several that writes what came of it."""
    return int(os.environ.get("RANK", "0")) == 0


def innermost_device(model: Any) -> torch.device:
    """Return where the model's weights are."""
    device: torch.device = next(iter(model.parameters())).device
    return device


class _Steps(torch.utils.data.Dataset):
    """Item i is the rows of step i."""

    def __init__(self, examples: Sequence[Encoded], steps: Sequence[Sequence[Sequence[int]]], width: int) -> None:
        self.examples, self.steps, self.width = examples, steps, width

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, step: int) -> list[Batch]:
        rows = self.steps[step]
        return [pack(self.examples, row, width=self.width, of=sum(map(len, rows))) for row in rows]


class _AnswerTrainer(transformers.Trainer):
    policy: Policy | None = None
    policy_rate: float = 0.0

    def _get_train_sampler(self, *_: Any) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)

    def training_step(self, model: Any, rows: list[Batch], *_: Any) -> torch.Tensor:
        """Add up the rows' gradients; processes exchange them once, with the last row's."""
        losses = []
        for number, row in enumerate(rows, start=1):
            waits = number < len(rows) and hasattr(model, "no_sync")
            with model.no_sync() if waits else nullcontext():
                losses.append(super().training_step(model, row))
        return torch.stack(losses).sum()

    def compute_loss(self, model: Any, inputs: Batch, *_: Any, **__: Any) -> torch.Tensor:
        loss: torch.Tensor = model(**inputs)["loss"]
        return loss

    def create_optimizer(self, *arguments: Any) -> torch.optim.Optimizer:
        optimiser: torch.optim.Optimizer = super().create_optimizer(*arguments)
        learned = {id(parameter) for parameter in learned_parameters(self.model)}
        if learned and not any(group.get("policy") for group in optimiser.param_groups):
            own = [p for group in optimiser.param_groups for p in group["params"] if id(p) in learned]
            for group in optimiser.param_groups:
                group["params"] = [p for p in group["params"] if id(p) not in learned]
            optimiser.add_param_group({"params": own, "lr": self.policy_rate, "weight_decay": 0.0, "policy": True})
        return optimiser

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        save_policy(self.policy, output_dir or self.args.output_dir)

    def _save_checkpoint(self, *arguments: Any) -> None:
        super()._save_checkpoint(*arguments)
        self.accelerator.wait_for_everyone()  # each process writes its own files: all of them, then the word
        if self.is_world_process_zero():
            checkpoint = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            sizes = {file.name: file.stat().st_size for file in checkpoint.iterdir() if file.is_file()}
            atomic.write_json(checkpoint / WHOLE, sizes)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if learned_parameters(self.model):
            restore_policy(self.policy, resume_from_checkpoint)


class _Pace(transformers.TrainerCallback):
    """Times the steps from log to log, where the host has just waited for the loss, and says how it goes.

    Waiting at every step would be simpler, and leave the device idle while the next batch is made.
    """

    def __init__(self, recipe: Recipe, tokens: list[int], processes: int, report: Callable[[str], None] | None) -> None:
        self.recipe, self.tokens, self.processes = recipe, tokens, processes
        self.report = report or (lambda line: print(line, file=sys.stderr, flush=True))
        self.marks: list[tuple[int, float]] = []  # (steps done, when)

    @property
    def speed(self) -> float:
        """Tokens per second from the middle of the run on: the first steps compile and warm up."""
        if len(self.marks) < 2:
            return 0.0
        last, ended = self.marks[-1]
        earlier = self.marks[:-1]
        first, began = next((mark for mark in earlier if 2 * mark[0] >= self.marks[0][0] + last), earlier[-1])
        return sum(self.tokens[first * self.processes : last * self.processes]) / (ended - began)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.marks = [(state.global_step, time.perf_counter())]

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" not in (logs or {}):
            return
        if not math.isfinite(loss := float(logs["loss"])):
            raise ValueError(f"the loss was {loss} by step {state.global_step:,}: take a lower learning rate")
        self.marks.append((state.global_step, time.perf_counter()))
        if not state.is_world_process_zero:
            return
        (before, then), (step, now) = self.marks[-2:]
        left = (self.recipe.steps - step) * (now - then) / (step - before)
        self.report(
            f"step {step:,} of {self.recipe.steps:,}, loss {loss:.4f}, "
            f"{self.speed:,.0f} tokens/s, {left // 60:.0f}:{left % 60:02.0f} left"
        )
