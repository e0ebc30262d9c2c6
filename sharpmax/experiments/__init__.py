"""One folder per claim: the paper's, and ours. Each says in its docstring the claim, the cost and the expected figure.

An experiment is a module with `run(out, *, seed, quick, **options)`, which computes in a `RunFolder`, writes its
figures and a `page.json`, and returns the metrics. It is listed here as data, and imported only when it runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from sharpmax import defaults
from sharpmax.files import atomic


@dataclass(frozen=True)
class Experiment:
    """One entry of the list: what `sharpmax reproduce NAME` runs.

    Attributes:
        name: what the user types, and the folder under the root.
        module: where its `run` is.
        claim: one line, for the help.
        options: its own options beside the common ones, each `--flag` with the keywords argparse takes. They reach
            `run` as keywords of the same name, and only if they were given.
        cost, quick_cost: how long it takes, and on what, as a person says it.
        by_default: whether it runs when none is named: what two CPU cores finish in minutes.
    """

    name: str
    module: str
    claim: str
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    by_default: bool = True
    cost: str = "minutes"
    quick_cost: str = "a minute"


EXPERIMENTS = (
    Experiment(
        "bounds",
        "sharpmax.experiments.bounds",
        "the theorem, drawn: why the largest attention weight falls as 1/n, and what each policy does about it",
        cost="under a minute on two cores",
        quick_cost="a few seconds on two cores",
    ),
    Experiment(
        "max-retrieval",
        "sharpmax.experiments.max_retrieval",
        "trained on at most 16 items, asked about 16,384 and more: the paper's Table 1, explained and beaten",
        {
            "--recipe": {"choices": ("paper", "sharp"), "help": "how the heads are trained (default: paper)"},
            "--full": {"action": "store_true", "help": "the whole run: ten seeds, every step of the recipe"},
            "--seeds": {"type": int, "metavar": "N", "help": "heads to train (default: 2; --full: 10)"},
            "--steps": {"type": int, "metavar": "N", "help": "training steps (default: a fifth of the recipe's)"},
            "--largest": {"type": int, "metavar": "N", "help": "items of the largest set asked; beyond 16384 streamed"},
            "--rotated": {"action": "store_true", "help": "turn the items by a random rotation, as sharp does"},
            "--unrotated": {"dest": "rotated", "action": "store_false", "help": "do not turn the items"},
        },
        cost="some minutes on two cores, and with --full half an hour",
        quick_cost="a minute or two on two cores",
    ),
    Experiment(
        "alternatives",
        "sharpmax.experiments.alternatives",
        "entmax, sigmoid, stick-breaking, linear and others in softmax's place: the same head, the same task",
        {
            "--arms": {"nargs": "+", "metavar": "ARM", "help": "which alternatives (default: all); more can follow"},
            "--full": {"action": "store_true", "help": "the whole run: ten seeds, every step of the recipe"},
            "--seeds": {"type": int, "metavar": "N", "help": "heads of each to train (default: 2; --full: 10)"},
            "--steps": {"type": int, "metavar": "N", "help": "training steps (default: a fifth of the recipe's)"},
            "--largest": {"type": int, "metavar": "N", "help": "items of the largest set asked, up to 16384"},
            "--learning-rate": {"type": float, "metavar": "RATE", "help": "learning rate of Adam (default: 0.001)"},
            "--l2": {"type": float, "metavar": "X", "help": "weight of the L2 penalty (default: 0.001)"},
        },
        by_default=False,
        cost="some minutes per arm on two cores; a GPU is advised for --full",
        quick_cost="some minutes on two cores",
    ),
    Experiment(
        "laws",
        "sharpmax.experiments.laws",
        "how fast attention disperses, by the distribution of its logits; real heads forecast at 8 times the length",
        {
            "--settings": {
                "nargs": "+",
                "metavar": "NAME",
                "help": "models on texts to forecast, as minilm-source (default: all free ones); more can follow",
            },
            "--only": {
                "nargs": "+",
                "metavar": "PART",
                "help": "of checks, policies, trained, heads, depth (default: all)",
            },
        },
        by_default=False,
        cost="half an hour on two cores, most of it SmolLM2",
        quick_cost="two minutes on two cores",
    ),
    Experiment(
        "recall",
        "sharpmax.experiments.recall",
        "Transformers trained to recall among 14 pairs, asked among 4,096, with sharp attention trained in or not",
        {
            "--arms": {
                "nargs": "+",
                "metavar": "ARM",
                "help": "of sharpmax.experiments.compare.arms (default: softmax, paper, rising, paper-inference)",
            },
            "--full": {"action": "store_true", "help": "the whole run (default): five seeds, 5000 steps, a GPU"},
            "--seeds": {"type": int, "metavar": "N", "help": "models per arm (default: 5; quick: 2)"},
            "--steps": {"type": int, "metavar": "N", "help": "training steps (default: 5000; quick: 40)"},
            "--device": {"metavar": "NAME", "help": "cuda or cpu (default: a GPU if there is one)"},
            "--precision": {
                "choices": ("float32", "tf32", "bf16"),
                "help": "precision of products in training (default: bf16 on a GPU, float32 on a CPU)",
            },
            "--compile": {
                "dest": "compiled",
                "action": "store_true",
                "help": "compile a layer (default on a GPU)",
            },
            "--no-compile": {"dest": "compiled", "action": "store_false", "help": "do not compile"},
        },
        by_default=False,
        cost="three minutes per arm on an H200; a GPU is advised",
        quick_cost="a minute on two cores",
    ),
    Experiment(
        "blow-up",
        "sharpmax.experiments.blow_up",
        "a training run that diverges: the head at fault is named before the loss rises, and a clip saves the run",
        {
            "--seeds": {"type": int, "metavar": "N", "help": "models with and without the clip (default: 5; quick: 2)"},
            "--steps": {"type": int, "metavar": "N", "help": "training steps (default: 400; quick: 30)"},
            "--rate": {"type": float, "metavar": "RATE", "help": "the highest learning rate (default: 0.15)"},
            "--threshold": {"type": float, "metavar": "X", "help": "largest logit left alone (default: 30)"},
        },
        by_default=False,
        cost="two minutes on two cores",
        quick_cost="some seconds on two cores",
    ),
    Experiment(
        "clrs-text",
        "sharpmax.experiments.clrs_text",
        "thirty algorithms learned on short inputs, asked on longer ones, with and without sharp attention",
        {
            "--model": {"metavar": "NAME", "help": "what to fine-tune (default: smollm2; quick: gemma-tiny)"},
            "--arms": {"nargs": "+", "metavar": "ARM", "help": "of plain, paper, ssmax, learn (default: all)"},
            "--seeds": {"type": int, "metavar": "N", "help": "orders of the data (default: 2); more can follow"},
            "--steps": {"type": int, "metavar": "N", "help": "training steps (default: 350; quick: 200)"},
            "--tokens": {"type": int, "metavar": "N", "help": "tokens per step (default: 49152)"},
            "--at-once": {"type": int, "metavar": "N", "help": "tokens in memory together (default: a step, 60 GB)"},
            "--compile": {"action": "store_true", "help": "compile the model's blocks: faster on a GPU"},
            "--learning-rate": {
                "type": float,
                "metavar": "RATE",
                "help": "of the weights (default: 3e-4; quick: 3e-3)",
            },
            "--rates": {"type": float, "nargs": "+", "metavar": "RATE", "help": "try these on the plain arm, and end"},
            "--only": {"nargs": "+", "metavar": "STEP", "help": "not the arms, but budget or agreement (or both)"},
            "--questions": {"type": int, "metavar": "N", "help": "questions asked by agreement (default: 48)"},
            "--parallel": {"type": int, "metavar": "N", "help": "arms trained side by side (default: 1)"},
            "--save-every": {"type": int, "metavar": "N", "help": "steps between checkpoints; 0: none"},
            "--device": {"metavar": "NAME", "help": "cuda or cpu (default: a GPU if there is one)"},
        },
        by_default=False,
        cost="some minutes per arm and seed on an H200; it needs a GPU",
        quick_cost="two minutes on two cores",
    ),
    Experiment(
        "clrs-protocol",
        "sharpmax.experiments.clrs_protocol",
        "CLRS-Text by its published protocol: Transformers from nothing, a gate first, then sharp attention trained in",
        {
            "--only": {
                "nargs": "+",
                "metavar": "STAGE",
                "help": "of rates, gate, arms, without a page (default: all, and the page)",
            },
            "--arms": {"nargs": "+", "metavar": "ARM", "help": "to train: plain, paper, ssmax (default: all)"},
            "--model": {
                "metavar": "NAME",
                "help": "a language model to fine-tune, such as smollm2 (default: from nothing)",
            },
            "--algorithms": {"nargs": "+", "metavar": "NAME", "help": "to learn and ask (default: all twelve)"},
            "--seeds": {
                "type": int,
                "metavar": "N",
                "help": "models per arm (default: 8 of plain and paper, 4 of ssmax)",
            },
            "--steps": {"type": int, "metavar": "N", "help": "training steps (default: 2500; quick: 12)"},
            "--batch": {"type": int, "metavar": "N", "help": "sequences per step, about (default: 128; quick: 8)"},
            "--tokens": {"type": int, "metavar": "N", "help": "tokens per step of a language model (default: 49152)"},
            "--layers": {"type": int, "metavar": "N", "help": "of the model (default: 8; quick: 1)"},
            "--width": {"type": int, "metavar": "N", "help": "of the model (default: 512; quick: 16)"},
            "--heads": {"type": int, "metavar": "N", "help": "of every layer (default: 8; quick: 2)"},
            "--positions": {
                "choices": ("sorted", "half", "rope", "alibi", "none"),
                "help": "how heads know positions (default: sorted, random ones in a quarter of the heads)",
            },
            "--rates": {"type": float, "nargs": "+", "metavar": "RATE", "help": "learning rates to choose from"},
            "--samples": {"type": int, "metavar": "N", "help": "questions per algorithm, length and seed (default: 4)"},
            "--together": {"type": int, "metavar": "N", "help": "seeds that train side by side (default: 4)"},
            "--despite-gate": {"action": "store_true", "help": "train the arms although the gate is not met"},
            "--gather": {"action": "store_true", "help": "compute nothing, and gather what is there"},
            "--device": {"metavar": "NAME", "help": "cuda or cpu (default: a GPU if there is one)"},
            "--precision": {
                "choices": ("float32", "tf32", "bf16"),
                "help": "products in training, on any device (default: bf16; quick: float32)",
            },
            "--compile": {"dest": "compiled", "action": "store_true", "help": "compile a layer (default on a GPU)"},
            "--no-compile": {"dest": "compiled", "action": "store_false", "help": "do not compile"},
        },
        by_default=False,
        cost="twenty minutes on an H200, estimated; it needs a GPU",
        quick_cost="a minute on two cores",
    ),
    Experiment(
        "calibration",
        "sharpmax.experiments.calibration",
        "three numbers per head, fitted on short lookups, judged on long ones and on text, beside their rivals",
        {
            "--model": {"metavar": "NAME", "help": "what to fit (default: smollm2; quick: gemma-tiny)"},
            "--device": {"metavar": "NAME", "help": "cuda or cpu (default: a GPU if there is one)"},
            "--prompts": {"type": int, "metavar": "N", "help": "questions per task and size (default: 200)"},
            "--steps": {"type": int, "metavar": "N", "help": f"steps of each fit (default: {defaults.LEARN_STEPS})"},
            "--questions": {"type": int, "metavar": "N", "help": "questions per step (default: 8)"},
            "--text-tokens": {"type": int, "metavar": "N", "help": "tokens of each kind of text (default: 98304)"},
            "--together": {"type": int, "metavar": "N", "help": "tokens to read at once (default: 65536)"},
            "--proposals": {"type": Path, "metavar": "FOLDER", "help": "a folder of pep-*.rst: more prose on Python"},
            "--only": {"nargs": "+", "metavar": "STEP", "help": "compute these steps, and gather nothing"},
            "--gather": {"action": "store_true", "help": "judge nothing more, and name what is absent"},
            "--arms": {
                "nargs": "+",
                "metavar": "ARM",
                "help": "instead of the study: a card beside its rivals, of learn, headscale, seal-h, seal-c, "
                "position, lora, card+seal-h, card+lora; or all",
            },
            "--seeds": {"type": int, "metavar": "N", "help": f"fits of each arm (default: {defaults.RIVAL_SEEDS})"},
            "--pilot": {"action": "store_true", "help": "arms at a small budget: an hour or two on two cores"},
        },
        by_default=False,
        cost="ten minutes on an H200; it needs a GPU",
        quick_cost="some minutes on two cores",
    ),
    Experiment(
        "context",
        "sharpmax.experiments.context",
        "beyond the trained context: scalings of rotary positions, with and without a temperature per head",
        {
            "--model": {"metavar": "NAME", "help": "what to extend (default: smollm2; quick: one trained in seconds)"},
            "--device": {"metavar": "NAME", "help": "cuda or cpu (default: a GPU if there is one)"},
            "--factors": {
                "nargs": "+",
                "type": float,
                "metavar": "X",
                "help": "times the trained context (default: 1 2 4 8); more can follow",
            },
            "--scalings": {
                "nargs": "+",
                "metavar": "NAME",
                "help": "of none, ntk, yarn, yarn-plain, self-extend (default: all); more can follow",
            },
            "--arms": {
                "nargs": "+",
                "metavar": "ARM",
                "help": "of nothing, log-n, beta, shipped, fitted, lora, headscale, seal, seal-channel (default: all)",
            },
            "--tasks": {"nargs": "+", "metavar": "TASK", "help": "questions to ask (default: lookup, RULER's six)"},
            "--documents": {"type": int, "metavar": "N", "help": "long documents (default: 8; quick: 2)"},
            "--prompts": {"type": int, "metavar": "N", "help": "questions per task and length (default: 40)"},
            "--steps": {"type": int, "metavar": "N", "help": f"steps of each fit (default: {defaults.LEARN_STEPS})"},
            "--parts": {
                "nargs": "+",
                "metavar": "PART",
                "help": "compute these: text, short, ask (default: all); more can follow",
            },
            "--gather": {"action": "store_true", "help": "compute nothing more, and tell of what is there"},
        },
        by_default=False,
        cost="some hours on a GPU, estimated; on two cores a document and cell at twice the context takes minutes",
        quick_cost="a minute on two cores",
    ),
)


def reproduce(
    names: str | Sequence[str] = (), *, out: str | Path = "runs", seed: int = 0, quick: bool = False, **options: Any
) -> Path:
    """Run the named experiment or experiments, then gather their pages into `out/report.html`.

    Args:
        names: one or several of `EXPERIMENTS`, in any order; none: all that run by default.
        out: the root that run folders and the report go to; a run found there is continued.
        seed: of every random draw.
        quick: a smaller run that shows the same thing in seconds.
        options: the named experiment's own options; only with exactly one name.

    Returns:
        The path of the report.

    Raises:
        ValueError: for an unknown name, a negative seed, or a run folder that holds another config.
        MissingExtraError: if an experiment needs an extra that is not installed; before any of them starts.
    """
    if not 0 <= seed < 2**32:  # JAX's keys keep 32 bits of it
        raise ValueError(f"expected a seed from 0 to {2**32 - 1}, got {seed}")
    chosen = [_find(name) for name in ([names] if isinstance(names, str) else names)] or [
        experiment for experiment in EXPERIMENTS if experiment.by_default
    ]
    if options and len(chosen) != 1:
        raise ValueError(f"options of one experiment ({', '.join(options)}) need that experiment named alone")
    modules = [import_module(experiment.module) for experiment in chosen]
    # Listing the experiments must not need the report extra, and hours of training must not end with its being missing.
    import_module("sharpmax.report.curves")
    from sharpmax.report import REPORT_FILE, write_report

    report = Path(out) / REPORT_FILE
    try:
        atomic.require_writable(report)
    except OSError as error:
        raise type(error)(
            f"cannot write {report}: {error.strerror or error}; choose another folder with --out"
        ) from error
    for module in modules:
        module.run(out, seed=seed, quick=quick, **options)
    return write_report(out, order=[experiment.name for experiment in EXPERIMENTS])


def _find(name: str) -> Experiment:
    for experiment in EXPERIMENTS:
        if experiment.name == name:
            return experiment
    raise ValueError(f"unknown experiment {name!r}; there are: {', '.join(e.name for e in EXPERIMENTS)}")
