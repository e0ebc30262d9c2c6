"""One folder per claim: the paper's, and ours. Each says in its docstring the claim, the cost and the expected figure.

An experiment is a module with `run(out, *, seed, quick, **options)`, which computes in a `RunFolder`, writes its
figures and a `page.json`, and returns the metrics. It is listed here as data, and imported only when it runs.

Its options are those of `sharpmax reproduce NAME --help`; one that is None, or empty, was not given. `run` raises
ValueError for options that do not fit, before any work, and for a run folder that holds another config. A run that was
stopped is continued: what it has computed is read back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from sharpmax import defaults
from sharpmax.files import atomic
from sharpmax.flags import COMPILED, DEVICE, listed, number, one_of, several, switch, word


@dataclass(frozen=True)
class Experiment:
    """One entry of the list: what `sharpmax reproduce NAME` runs.

    Attributes:
        name: what the user types, and the folder under the root.
        claim: one line, for the help.
        options: its own options beside the common ones, each `--flag` with the keywords argparse takes. They reach
            `run` as keywords of the same name, and only if they were given.
        cost, quick_cost: how long it takes, and on what, as a person says it.
        by_default: whether it runs when none is named: what two CPU cores finish in minutes.
    """

    name: str
    claim: str
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    by_default: bool = False
    cost: str = "minutes"
    quick_cost: str = "a minute"

    @property
    def module(self) -> str:
        """Where its `run` is."""
        return f"{__name__}.{self.name.replace('-', '_')}"


EXPERIMENTS = (
    Experiment(
        "bounds",
        "the theorem, drawn: why the largest attention weight falls as 1/n, and what each policy does about it",
        by_default=True,
        cost="under a minute on two cores",
        quick_cost="a few seconds on two cores",
    ),
    Experiment(
        "max-retrieval",
        "trained on at most 16 items, asked about 16,384 and more: the paper's Table 1, explained and beaten",
        {
            "--recipe": one_of("paper", "sharp", said="how the heads are trained (default: paper)"),
            "--full": switch("the whole run: ten seeds, every step of the recipe"),
            "--seeds": number("heads to train (default: 2; --full: 10)"),
            "--steps": number("training steps (default: a fifth of the recipe's)"),
            "--largest": number(
                "items of the largest set asked; beyond 16384 streamed (default: the recipe's; quick: 1024)"
            ),
            "--rotated": switch("turn the items by a random rotation, as sharp does"),
            "--unrotated": {"dest": "rotated", "action": "store_false", "help": "do not turn the items"},
        },
        by_default=True,
        cost="some minutes on two cores, and with --full half an hour",
        quick_cost="a minute or two on two cores",
    ),
    Experiment(
        "alternatives",
        "entmax, sigmoid, stick-breaking, linear and others in softmax's place: the same head, the same task",
        {
            "--arms": several("ARM", "which alternatives (default: all); more can follow"),
            "--full": switch("the whole run: ten seeds, every step of the recipe"),
            "--seeds": number("heads of each to train (default: 2; --full: 10)"),
            "--steps": number("training steps (default: a fifth of the recipe's)"),
            "--largest": number("items of the largest set asked, up to 16384 (default: 16384; quick: 1024)"),
            "--learning-rate": number("learning rate of Adam (default: 0.001)", float, "RATE"),
            "--l2": number("weight of the L2 penalty (default: 0.001)", float, "X"),
        },
        cost="some minutes per arm on two cores; a GPU is advised for --full",
        quick_cost="some minutes on two cores",
    ),
    Experiment(
        "laws",
        "how fast attention disperses, by the distribution of its logits; real heads forecast at 8 times the length",
        {
            "--settings": several(
                "NAME", "models on texts to forecast, as minilm-source (default: all free ones); more can follow"
            ),
            "--only": several("PART", "of checks, policies, trained, heads, depth, small (default: all)"),
        },
        cost="half an hour on two cores, most of it SmolLM2",
        quick_cost="two minutes on two cores",
    ),
    Experiment(
        "recall",
        "Transformers trained to recall among 14 pairs, asked among 4,096, with sharp attention trained in or not",
        {
            "--arms": several(
                "ARM", "of sharpmax.experiments.compare.arms (default: softmax, paper, rising, paper-inference)"
            ),
            "--full": switch("the whole run (default): five seeds, 5000 steps, a GPU"),
            "--seeds": number("models per arm (default: 5; quick: 2)"),
            "--steps": number("training steps (default: 5000; quick: 40)"),
            **DEVICE,
            "--precision": one_of(
                "float32",
                "tf32",
                "bf16",
                said="precision of products in training (default: bf16 on a GPU, float32 on a CPU)",
            ),
            **COMPILED,
        },
        cost="three minutes per arm on an H200; a GPU is advised",
        quick_cost="a minute on two cores",
    ),
    Experiment(
        "blow-up",
        "a training run that diverges: the head at fault is named before the loss rises, and a clip saves the run",
        {
            "--seeds": number("models with and without the clip (default: 5; quick: 2)"),
            "--steps": number("training steps (default: 400; quick: 30)"),
            "--rate": number("the highest learning rate (default: 0.15)", float, "RATE"),
            "--threshold": number("largest logit left alone (default: 30)", float, "X"),
        },
        cost="two minutes on two cores",
        quick_cost="some seconds on two cores",
    ),
    Experiment(
        "clrs-text",
        "thirty algorithms learned on short inputs, asked on longer ones, with and without sharp attention",
        {
            "--model": word("what to fine-tune (default: smollm2; quick: gemma-tiny)"),
            "--arms": several("ARM", "of plain, paper, ssmax, learn (default: all)"),
            "--seeds": number("orders of the data (default: 2); more can follow"),
            "--steps": number("training steps (default: 350; quick: 200)"),
            "--tokens": number("tokens per step (default: 49152)"),
            "--at-once": number("tokens in memory together (default: a step, 60 GB)"),
            "--compile": switch("compile the model's blocks: faster on a GPU"),
            "--learning-rate": number("of the weights (default: 3e-4; quick: 3e-3)", float, "RATE"),
            "--rates": several(
                "RATE", "try these on the plain arm, and end (default: none, the arms are trained)", float
            ),
            "--only": several("STEP", "not the arms, but budget or agreement (or both)"),
            "--questions": number("questions asked by agreement (default: 48)"),
            "--parallel": number("arms trained side by side (default: 1)"),
            "--save-every": number("steps between checkpoints; 0: none (default: 200; quick: 0)"),
            **DEVICE,
        },
        cost="some minutes per arm and seed on an H200; it needs a GPU",
        quick_cost="two minutes on two cores",
    ),
    Experiment(
        "clrs-protocol",
        "CLRS-Text by its published protocol: Transformers from nothing, a gate first, then sharp attention trained in",
        {
            "--only": several("STAGE", "of rates, gate, arms, without a page (default: all, and the page)"),
            "--arms": several("ARM", "to train: plain, paper, ssmax (default: all)"),
            "--model": word("a language model to fine-tune, such as smollm2 (default: from nothing)"),
            "--algorithms": several("NAME", "to learn and ask (default: all twelve)"),
            "--seeds": number("models per arm (default: 8 of plain and paper, 4 of ssmax; with --model 4)"),
            "--steps": number("training steps (default: 2500; with --model 800; quick: 12)"),
            "--batch": number("sequences per step, about (default: 128; with --model 330; quick: 8)"),
            "--tokens": number("tokens per step of a language model (default: 49152)"),
            "--layers": number("of the model (default: 8; quick: 1)"),
            "--width": number("of the model (default: 512; quick: 16)"),
            "--heads": number("of every layer (default: 8; quick: 2)"),
            "--positions": one_of(
                "sorted",
                "half",
                "rope",
                "alibi",
                "none",
                said="how heads know positions (default: sorted, random ones in a quarter of the heads)",
            ),
            "--rates": several(
                "RATE", "learning rates to choose from (default: 0.0003 0.0006 0.001 0.002; with --model 0.0003)", float
            ),
            "--samples": number("questions per algorithm, length and seed (default: 4; with --model 2)"),
            "--together": number("seeds that train side by side (default: 4; with --model one)"),
            "--despite-gate": switch("train the arms although the gate is not met"),
            "--gather": switch("compute nothing, and gather what is there"),
            **DEVICE,
            "--precision": one_of(
                "float32",
                "tf32",
                "bf16",
                said="products in training from nothing, on any device (default: bf16; quick: float32)",
            ),
            **COMPILED,
        },
        cost="twenty minutes on an H200, estimated; it needs a GPU",
        quick_cost="a minute on two cores",
    ),
    Experiment(
        "tables",
        "TabPFN, trained on at most 1,024 rows, asked with up to 16,384: does sharper attention help, or fewer rows",
        {
            "--tables": several("NAME", "to judge on (default: all); more can follow"),
            "--arms": several("ARM", "to judge (default: all); more can follow"),
            "--largest": number("rows of the largest tables (default: 16384)"),
            "--gather": switch("compute nothing more, and gather what is there"),
        },
        cost="an hour on two cores",
        quick_cost="half a minute on two cores",
    ),
    Experiment(
        "calibration",
        "three numbers per head, fitted on short lookups, judged on long ones and on text, beside their rivals",
        {
            "--model": word("what to fit (default: smollm2; quick: gemma-tiny)"),
            **DEVICE,
            "--prompts": number("questions per task and size (default: 200)"),
            "--steps": number(f"steps of each fit (default: {defaults.LEARN_STEPS})"),
            "--questions": number("questions per step (default: 8)"),
            "--text-tokens": number("tokens of each kind of text (default: 98304)"),
            "--together": number("tokens to read at once (default: 65536)"),
            "--proposals": {"type": Path, "metavar": "FOLDER", "help": "a folder of pep-*.rst: more prose on Python"},
            "--only": several("STEP", "compute these steps, and gather nothing"),
            "--gather": switch("judge nothing more, and name what is absent"),
            "--arms": several(
                "ARM",
                "instead of the study: a card beside its rivals, of learn, headscale, seal-h, seal-c, position, lora, "
                "card+seal-h, card+lora; or all",
            ),
            "--seeds": number(f"fits of each arm (default: {defaults.RIVAL_SEEDS})"),
            "--pilot": switch("arms at a small budget: an hour or two on two cores"),
        },
        cost="ten minutes on an H200; it needs a GPU",
        quick_cost="some minutes on two cores",
    ),
    Experiment(
        "context",
        "beyond the trained context: scalings of rotary positions, with and without a temperature per head",
        {
            "--model": word("what to extend (default: smollm2; quick: one trained in seconds)"),
            **DEVICE,
            "--factors": several("X", "times the trained context (default: 1 2 4 8); more can follow", float),
            "--scalings": several("NAME", "of none, ntk, yarn, yarn-plain, self-extend (default: all)"),
            "--arms": several(
                "ARM", "of nothing, log-n, beta, shipped, fitted, lora, headscale, seal, seal-channel (default: all)"
            ),
            "--tasks": several("TASK", "questions to ask (default: lookup, RULER's six)"),
            "--documents": number("long documents (default: 8; quick: 2)"),
            "--prompts": number("questions per task and length (default: 40)"),
            "--steps": number(f"steps of each fit (default: {defaults.LEARN_STEPS})"),
            "--parts": several("PART", "compute these: text, short, ask (default: all); more can follow"),
            "--gather": switch("compute nothing more, and tell of what is there"),
        },
        cost="some hours on a GPU, estimated; on two idle cores a document takes minutes at twice the context",
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
    chosen = [listed(name, EXPERIMENTS, "experiment") for name in ([names] if isinstance(names, str) else names)] or [
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
