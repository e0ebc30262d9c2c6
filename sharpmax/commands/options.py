"""Declare the options of every command, as argparse reads them; it imports no framework.

What experiments and benchmarks take is listed with them, so `sharpmax --help` is quick and needs no extra.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from sharpmax import __version__, defaults
from sharpmax.bench import BENCHMARKS
from sharpmax.experiments import EXPERIMENTS

EXIT_USER_ERROR = 2
CARD = "a file, a folder that holds one, or a name that `sharpmax cards` lists"


class _Help(argparse.HelpFormatter):
    """Help in which every option and command stands beside what it does, with its default."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def add_argument(self, action: argparse.Action) -> None:
        """Measure an argument; argparse forgets by how much commands are indented."""
        super().add_argument(action)
        if action.nargs == argparse.PARSER:
            self._action_max_length += self._indent_increment

    def _get_help_string(self, action: argparse.Action) -> str:
        default, said = action.default, action.help or ""
        if default is None or default is False or default in ((), argparse.SUPPRESS):
            return said
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
        return f"{said} (default: {shown})"


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors take one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_Help, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USER_ERROR, f"sharpmax: error: {' '.join(message.split())} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    status = (
        "exit status: 0 done, 1 a benchmark's result is wrong, 2 something to mend, 3 no gain, 4 undecided, "
        "130 interrupted"
    )
    whole = _Parser(prog="sharpmax", description="Attention that stays sharp as inputs grow.", epilog=status)
    whole.add_argument("--version", action="version", version=f"sharpmax {__version__}")
    verbs = whole.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    for name, (add, said) in VERBS.items():
        add(verbs.add_parser(name, help=said))
    return whole


def _reproduce(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run one experiment, or all of them, and gather their pages into OUT/report.html."
    _run_options(parser, out=Path(defaults.OUT), seed=defaults.SEED, quick=False, debug=False, quiet=False)
    by_default = " and ".join(experiment.name for experiment in EXPERIMENTS if experiment.by_default)
    names = parser.add_subparsers(dest="experiment", metavar="EXPERIMENT", title=f"experiments (default: {by_default})")
    for experiment in EXPERIMENTS:
        one = names.add_parser(experiment.name, help=experiment.claim, description=experiment.claim)
        # A default here would undo the same option given before the experiment's name.
        _run_options(one, *[argparse.SUPPRESS] * 5)
        _own_options(one, experiment.options)


def _run_options(
    parser: argparse.ArgumentParser, out: object, seed: object, quick: object, debug: object, quiet: object
) -> None:
    parser.add_argument("--out", type=Path, default=out, help="folder of the runs and the report")
    parser.add_argument("--seed", type=int, default=seed, help="seed of every random draw")
    parser.add_argument("--quick", action="store_true", default=quick, help="a much smaller run, to see that it works")
    _quiet(parser, quiet)
    _debug(parser, debug)


def _bench(parser: argparse.ArgumentParser) -> None:
    names = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for benchmark in BENCHMARKS:
        one = names.add_parser(benchmark.name, help=benchmark.question, description=benchmark.question)
        one.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as well")
        _debug(one)
        _own_options(one, benchmark.options)


def _own_options(parser: argparse.ArgumentParser, options: Any) -> None:
    for flag, keywords in options.items():
        parser.add_argument(flag, **{"default": argparse.SUPPRESS, **keywords})


def _models(parser: argparse.ArgumentParser) -> None:
    _debug(parser)


def _cards(parser: argparse.ArgumentParser) -> None:
    _debug(parser)


def _diagnose(parser: argparse.ArgumentParser) -> None:
    parser.description = "Measure every head at every length; write JSON, figures and an interactive page."
    _model_options(parser)
    what = parser.add_mutually_exclusive_group()
    text_help = "files to read (default: source code of Python itself)"
    what.add_argument("--text", dest="texts", type=Path, nargs="+", default=(), metavar="FILE", help=text_help)
    what.add_argument("--task", help="prompts instead of text: maximum, lookup, needle or copy")
    number = _number(parser)
    lengths_help = (
        "tokens of text (default: 64, 128, … as far as model and text reach), or items of a prompt (default: 4, 8, … "
        "128); beside those of an earlier run in the same folder"
    )
    number("--lengths", lengths_help, (), nargs="+")
    number("--rows", "query rows observed at each length", defaults.ROWS)
    number("--seed", "seed of the prompts", defaults.SEED)
    _device(parser)


def _certify(parser: argparse.ArgumentParser) -> None:
    parser.description = "Bound every head's logits by its weights; beside it, what a text shows."
    _model_options(parser)
    text_help = "text to measure spreads on (default: source code of Python itself)"
    parser.add_argument("--text", type=Path, metavar="FILE", help=text_help)
    length = f"tokens of it to read (default: {defaults.CERTIFIED_LENGTH}, or as many as there are)"
    _number(parser)("--length", length)
    parser.add_argument("--card", type=Path, metavar="CARD", help=f"certify the model under this card: {CARD}")
    _device(parser)


def _calibrate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Fit a temperature to every head and judge it; exit 3, and no card, if nothing gains, 4 if more text must tell."
    )
    _model_options(parser)
    add, number = parser.add_argument, _number(parser)
    quick = "a first verdict in about ten minutes on two cores: a small fit, and text in short windows only"
    add("--quick", action="store_true", help=quick)
    add("--method", choices=defaults.METHODS, default="learn", help="how to fit")
    add("--fit-tasks", nargs="+", default=defaults.FIT_TASKS, metavar="TASK", help="tasks to fit on")
    number("--fit-sizes", "entries of a question to fit on", defaults.FIT_SIZES, nargs=2, metavar=("LOW", "HIGH"))
    number("--text-before", "characters of text before a question, at most; learn only", defaults.TEXT_BEFORE)
    number("--steps", "training steps; learn only", defaults.LEARN_STEPS)
    number("--questions-a-step", "questions per step; learn only", defaults.QUESTIONS_PER_STEP)
    number("--learning-rate", "of Adam; learn only", defaults.LEARN_RATE, type=float)
    number("--penalty", "a fixed price of text; learn only (default: prices follow --most-rise)", type=float)
    add("--learned", default=defaults.LEARNED, help="which of a, b, c to learn; learn only")
    number("--truth", "weight of text's own loss, 0 to 1; learn only", defaults.TRUTH, type=float)
    _exam_options(parser)


def _evaluate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Judge a card on prompts and text: accuracy, loss, perplexity, each paired with the plain model; exit 3 if it "
        "does not gain, 4 if more text must tell."
    )
    _model_options(parser)
    parser.add_argument("--card", type=Path, required=True, metavar="CARD", help=CARD)
    _exam_options(parser)


def _exam_options(parser: argparse.ArgumentParser) -> None:
    add, number = parser.add_argument, _number(parser)
    add("--tasks", nargs="+", default=defaults.EXAM_TASKS, metavar="TASK", help="tasks to judge on")
    number("--sizes", "entries of a question", defaults.EXAM_SIZES, nargs="+")
    number("--prompts", "prompts per task and size", defaults.PROMPTS)
    usual = " ".join(map(str, defaults.WINDOWS))
    number("--windows", f"tokens per window of text (default: those of {usual} that the model holds)", nargs="+")
    add("--text", type=Path, metavar="FILE", help="the text (default: Python's reference and source, NumPy)")
    number("--text-tokens", "tokens of each kind of text", defaults.TEXT_TOKENS)
    number("--most-rise", "allowed rise of perplexity, a share", defaults.MOST_RISE, type=float)
    number("--together", "tokens read at once, about; 1: one text at a time", defaults.TOGETHER)
    number("--seed", "seed of every draw", defaults.SEED)
    _device(parser)


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The whole way in one command: does the model get worse with length, which heads disperse, does a card help, "
        "what does it cost. A card that is shipped or given is judged; else one is fitted as `calibrate --quick` does."
    )
    _model_options(parser)
    parser.add_argument("--card", type=Path, metavar="CARD", help=CARD)
    parser.add_argument("--task", default="lookup", help="the symptom: lookup, needle, copy, maximum or residues")
    _number(parser)("--seed", "seed of every draw", defaults.SEED)
    _device(parser)


def _finetune(parser: argparse.ArgumentParser) -> None:
    parser.description = "Train a model on CLRS-Text with a policy in every head, judge it on longer inputs, keep it."
    _model_options(parser)
    add, number = parser.add_argument, _number(parser)
    add("--task", default=defaults.TASK, help="what to train on")
    add("--policy", default=defaults.POLICY, help=f"none, paper, ssmax, learn, or a card: {CARD}")
    number("--steps", "training steps", defaults.TRAIN_STEPS)
    number("--tokens", "tokens per step and process", defaults.TRAIN_TOKENS)
    number("--at-once", "tokens in memory together (default: a whole step)")
    add("--compile", action="store_true", help="compile the model's blocks: faster on a GPU")
    number("--learning-rate", "of the weights", defaults.TRAIN_RATE, type=float)
    number("--policy-rate", "of what the policy learns", defaults.POLICY_RATE, type=float)
    number("--lora", "rank of a LoRA to train instead of the weights (default: train the weights)")
    add("--algorithms", nargs="+", metavar="NAME", help="some of the thirty (default: all)")
    number("--train-lengths", "lengths of the inputs", defaults.TRAIN_LENGTHS, nargs="+")
    number("--test-lengths", "lengths asked", defaults.TEST_LENGTHS, nargs="+")
    number("--examples", "examples to train on", defaults.TRAIN_EXAMPLES)
    number("--test-samples", "questions of each algorithm, length and validation seed", defaults.TEST_SAMPLES)
    add("--hints", action="store_true", help="answers show the algorithm's trace")
    number("--save-every", "steps between checkpoints; 0: none", defaults.SAVE_EVERY)
    add("--tensorboard", action="store_true", help="write the loss for TensorBoard as well")
    number("--seed", "seed of the order of the data", defaults.SEED)
    _device(parser, "a GPU if there is one")


def _compare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Train small Transformers with other mechanisms in softmax's place, ask them on longer inputs, and write "
        "OUT/compare/…/leaderboard.html. A run that is there is continued, and cells can be added."
    )
    _run_options(parser, out=Path(defaults.OUT), seed=defaults.SEED, quick=False, debug=False, quiet=False)
    add, number = parser.add_argument, _number(parser)
    add("--tasks", nargs="+", default=(), metavar="TASK", help="tasks with a size dial (default: all)")
    arms_help = "mechanisms by name, or MODULE:ATTRIBUTE of your own (default: fifteen)"
    add("--arms", nargs="+", default=(), metavar="ARM", help=arms_help)
    add("--models", nargs="+", default=(), metavar="MODEL", help="of 0.3M, 1M, 3M, 10M, 30M (default: 1M)")
    number("--seeds", "models per cell (default: 5; quick: 3)")
    number("--steps", "training steps (default: 3000; quick: 20)")
    number("--batch", "sequences per step and model (default: 256; quick: 8)")
    rates_help = "learning rates to choose from, on a spare seed (default: 0.001 0.003)"
    number("--rates", rates_help, (), type=float, nargs="+", metavar="RATE")
    positions_help = "what heads know of places: ALiBi in half of them, in all, none, or RoPE (default: half)"
    add("--positions", choices=("half", "alibi", "none", "rope"), default="half", help=positions_help)
    add("--engine", choices=("local", "ray"), default="local", help="where cells are computed (default: local)")
    add("--address", help="of a Ray cluster (default: one that is started here)")
    precision_help = "products in training (default: bf16 on a GPU, float32 on a CPU)"
    add("--precision", choices=("float32", "tf32", "bf16"), help=precision_help)
    compile_help = "compile a layer, or not (default: on a GPU)"
    add("--compile", dest="compiled", action=argparse.BooleanOptionalAction, help=compile_help)
    _device(parser, "a GPU if there is one")


def _monitor(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show a watched training run: every head's largest logit and entropy at every step, as a page."
    add = parser.add_argument
    add(
        "run",
        type=Path,
        metavar="RUN",
        help="the folder of the record that `watch(model, record=…)` writes, or its file",
    )
    add("--out", type=Path, metavar="FILE", help="the page (default: RUN/monitor.html)")
    add("--live", action="store_true", help="keep the page up to date while the run goes on, until Ctrl-C")
    add("--interval", type=float, default=5.0, metavar="S", help="seconds between two looks at the record")
    _debug(parser)


def _serve_check(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Ask a running OpenAI-compatible server lookups over HTTP, beside a plain server or the card's own record; "
        "exit 3 if the card does not act, 4 if nothing tells."
    )
    add, number = parser.add_argument, _number(parser)
    add("url", metavar="URL", help="the server with the card, as http://127.0.0.1:8000")
    add("--plain", metavar="URL", help="the same model served without the card")
    add("--card", type=Path, metavar="FILE", help="the card, whose record says what to expect")
    add("--model", help="the name that the servers know the model by (default: the first that they list)")
    number("--sizes", "entries of a question", defaults.EXAM_SIZES, nargs="+")
    number("--prompts", "questions per size", defaults.SERVED_PROMPTS)
    number("--together", "questions asked at once", defaults.SERVED_TOGETHER)
    number("--timeout", "seconds until a server must answer", defaults.SERVED_TIMEOUT, type=float)
    number("--seed", "seed of the questions", defaults.SEED)
    _debug(parser)


def _number(parser: argparse.ArgumentParser) -> Callable[..., None]:
    """Return what adds an option that takes one or several numbers, N unless named otherwise."""

    def add(flag: str, said: str, default: Any = None, **keywords: Any) -> None:
        parser.add_argument(flag, help=said, default=default, **{"type": int, "metavar": "N", **keywords})

    return add


def _quiet(parser: argparse.ArgumentParser, default: object = False) -> None:
    parser.add_argument("--quiet", action="store_true", default=default, help="show no progress, only the result")


def _model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a name that `sharpmax models` lists, a local folder, or a name on the hub")
    parser.add_argument("--accept-license", action="store_true", help="use weights whose licence restricts their use")
    parser.add_argument("--out", type=Path, default=Path(defaults.OUT), help="folder of the runs")
    _quiet(parser)
    _debug(parser)


def _device(parser: argparse.ArgumentParser, usual: str = "cpu") -> None:
    parser.add_argument("--device", help=f"where to run: cpu or cuda (default: {usual})")


def _debug(parser: argparse.ArgumentParser, default: object = False) -> None:
    parser.add_argument("--debug", action="store_true", default=default, help="show the traceback of an error")


VERBS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], str]] = {
    "reproduce": (_reproduce, "run the experiments and write report.html"),
    "compare": (_compare, "train other mechanisms in softmax's place, and ask them on longer inputs"),
    "bench": (_bench, "measure what sharpmax costs on this machine"),
    "models": (_models, "list the pretrained models that can be fetched by name"),
    "cards": (_cards, "list the policy cards that come with sharpmax"),
    "diagnose": (_diagnose, "see which heads of a model disperse as its input grows"),
    "certify": (_certify, "prove the size beyond which a head cannot be sharp"),
    "calibrate": (_calibrate, "fit a policy to a model, and judge it on held-out data"),
    "evaluate": (_evaluate, "judge a policy card on a model again"),
    "doctor": (_doctor, "go from the symptom to a card, or to the finding that none helps"),
    "finetune": (_finetune, "fine-tune a model with a policy in every head"),
    "monitor": (_monitor, "see every head of a training run that is watched, live or afterwards"),
    "serve-check": (_serve_check, "ask a running server whether its card acts, and what it costs"),
}
"""Each command: what declares its options, and its line in the help."""
