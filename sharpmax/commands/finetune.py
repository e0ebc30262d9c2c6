"""Fine-tune a model with a policy in every head, judge it on longer inputs, and keep it: `sharpmax finetune`.

Cost: on an H200, SmolLM2 trains on some hundred thousand tokens per second.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sharpmax import defaults
from sharpmax.core.cards import policy_to_json
from sharpmax.hf.calibration.judge import must_take
from sharpmax.hf.finetune.answer_batches import Encoded, encode, require_room
from sharpmax.hf.finetune.answer_model import right_tokens
from sharpmax.hf.finetune.judging import autocast, on_policy
from sharpmax.hf.finetune.lora import with_lora
from sharpmax.hf.finetune.train import Recipe, finetune, is_first_process
from sharpmax.hf.finetune.trained_policy import NAMES, policy_named, save_policy
from sharpmax.hf.models.identity import fingerprint
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.models.load_to_train import load_by_name
from sharpmax.hf.models.quiet import quiet
from sharpmax.hf.pace import LEARNED, seconds_per_token
from sharpmax.hf.sharpen.sidecar import card_for
from sharpmax.hf.verbs.next_command import command
from sharpmax.runs.progress import report_as, say_estimate, stage
from sharpmax.runs.run_folder import RunFolder, read_metrics, run_name
from sharpmax.tasks.clrs_text.corpus import Plan, corpus
from sharpmax.tasks.clrs_text.examples import ALGORITHMS, Example
from sharpmax.torch.device import device_or_best

TASKS = (defaults.TASK,)


def finetune_model(
    model: str,
    *,
    task: str = defaults.TASK,
    policy: str = defaults.POLICY,
    steps: int = defaults.TRAIN_STEPS,
    tokens: int = defaults.TRAIN_TOKENS,
    learning_rate: float = defaults.TRAIN_RATE,
    policy_rate: float = defaults.POLICY_RATE,
    lora: int = 0,
    at_once: int | None = None,
    compile: bool = False,
    algorithms: Sequence[str] = ALGORITHMS,
    train_lengths: Sequence[int] = defaults.TRAIN_LENGTHS,
    test_lengths: Sequence[int] = defaults.TEST_LENGTHS,
    examples: int = defaults.TRAIN_EXAMPLES,
    test_samples: int = defaults.TEST_SAMPLES,
    hints: bool = False,
    save_every: int = defaults.SAVE_EVERY,
    tensorboard: bool = False,
    device: str | None = None,
    out: str | Path = defaults.OUT,
    seed: int = defaults.SEED,
    accept_license: bool = False,
) -> dict[str, Any]:
    """Fine-tune and judge a model, in `out/finetune/<name>/`; returns the metrics.

    A killed run is continued, a finished one is read back.

    Args:
        model: `gemma-tiny`, `gemma-small`, `gemma2-tiny` (random weights), a built-in name, a folder, or a hub name.
        policy: none, paper, ssmax, learn, or the path of a card.
        lora: rank of a LoRA on every linear layer that is trained instead of the weights; 0 trains the weights.
        at_once: tokens that pass through the model together; all of a step unless given.
        compile: let torch compile the model's blocks.
        algorithms, train_lengths, test_lengths, examples, test_samples, hints: the data, as in `corpus.Plan`.

    Raises:
        ValueError: options that do not fit, or a run folder that holds another config.
    """
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}; there are: {', '.join(TASKS)}")
    device = device_or_best(device)
    plan = Plan(
        tuple(algorithms), tuple(train_lengths), tuple(test_lengths), examples, test_samples=test_samples, hints=hints
    )
    recipe = Recipe(
        steps, tokens, learning_rate, policy_rate, at_once=at_once, compile=compile, save_every=save_every, seed=seed
    )
    if lora < 0:
        raise ValueError(f"expected a LoRA of rank 1 or more, or 0 for none, got {lora}")
    with stage(f"loading {model}"):
        loaded = load_by_name(model, seed=seed, device=device, accept_license=accept_license)
    chosen = policy_named(policy, loaded.model)
    if policy not in NAMES and chosen is not None:
        must_take(loaded, chosen)
    # A card by what it says: one that was edited makes another run.
    named = policy if policy in NAMES else {"card": policy_to_json(card_for(model, policy).policy)}
    config = {"seed": seed, "model": model, "weights": fingerprint(loaded), "task": task, "policy": named}
    config |= {"lora": lora, "corpus": asdict(plan)}
    config |= {"recipe": {name: value for name, value in asdict(recipe).items() if name not in ("save_every", "seed")}}
    name = f"{run_name(model)}-{task}-{run_name(Path(policy).stem)}" + (f"-lora{lora}" if lora else "") + f"-seed{seed}"
    folder = RunFolder.planned(out, "finetune", name, config)
    if (folder.path / "model").is_dir() and (finished := read_metrics(folder.path)):
        # The folder may lie elsewhere now than when it was written.
        return finished | {"model": str(folder.path / "model")} if is_first_process() else {}
    with stage("making the corpus"):
        texts = corpus(plan)
        train = _encoded(loaded, texts.train)
    require_room([len(example.ids) for example in train], recipe.width)
    folder.begin()  # now that nothing speaks against it
    say_estimate(LEARNED * seconds_per_token(loaded) * tokens * steps, device, "--steps and --tokens set it")
    trained = with_lora(loaded.model, lora, seed=seed) if lora else loaded.model
    with stage("training"):
        how: dict[str, Any] = {"policy": chosen, "tensorboard": tensorboard, "report": report_as(name)}
        done = finetune(trained, train, recipe, folder=folder.path / "training", **how)
    if not is_first_process():
        return {}
    if done.weights is not None:  # FSDP has taken the model apart: the same once more, with what it learned
        loaded = load_by_name(model, seed=seed, device=device, accept_license=accept_license)
        trained = with_lora(loaded.model, lora, seed=seed) if lora else loaded.model
        trained.load_state_dict(done.weights)
    with quiet():
        trained.save_pretrained(folder.path / "model")
    loaded.tokenizer.save_pretrained(folder.path / "model")
    save_policy(chosen, folder.path / "model")
    test = _encoded(loaded, texts.test)
    with stage("judging"), on_policy(trained, chosen), autocast(device):
        right = right_tokens(trained, test)
    metrics = {
        "losses": done.losses,
        "tokens_per_second": round(done.tokens_per_second),
        "left_out": texts.left_out,
        "data": texts.sha256,
        "by_length": _by_length(texts.test, test, right),
        "model": str(folder.path / "model"),
    }
    folder.finish(metrics)
    return metrics


def print_finetuned(metrics: dict[str, Any]) -> None:
    """Print accuracy by length, and where the model is."""
    if not metrics:
        return
    print("length  exact answers  tokens")
    for length, found in metrics["by_length"].items():
        print(f"{length:>6}  {100 * found['exact']:12.1f}%  {100 * found['tokens']:5.1f}%")
    print(f"model: {metrics['model']}")
    print(f"next: {_next_step(metrics['model'])}")


def _next_step(model: str) -> str:
    """Return what to type next; an adapter alone is no model that a verb can load."""
    if (Path(model) / "config.json").exists():
        return command("diagnose", model, {}, "which heads disperse now")
    return f'peft.PeftModel.from_pretrained(model, "{model}") puts the adapter on the model it was trained from'


def _encoded(loaded: LoadedModel, examples: list[Example]) -> list[Encoded]:
    return encode(loaded.tokenizer, [(example.question, example.answer) for example in examples])


def _by_length(examples: list[Example], encoded: list[Encoded], right: list[int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for length in sorted({example.length for example in examples}):
        counts = [
            (r, len(e.ids) - e.start) for x, e, r in zip(examples, encoded, right, strict=True) if x.length == length
        ]
        found[str(length)] = {
            "examples": len(counts),
            "exact": sum(r == n for r, n in counts) / len(counts),
            "tokens": sum(r / n for r, n in counts) / len(counts),  # an answer counts as one, as in the loss
        }
    return found
