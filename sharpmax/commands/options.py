"""Declare the options of every command, as argparse reads them; it imports no framework.

What experiments and benchmarks take is listed with them, so `sharpmax --help` is quick and needs no extra.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sharpmax import __version__, defaults
from sharpmax.bench import BENCHMARKS
from sharpmax.commands.help import EXIT_USER_ERROR as EXIT_USER_ERROR
from sharpmax.commands.help import RUN, Parser, describe, group
from sharpmax.defaults import SCALINGS
from sharpmax.experiments import EXPERIMENTS
from sharpmax.tasks.prompts import CLOSE, WORDINGS
from sharpmax.tasks.prompts import TASKS as PROMPTED

TASKS = f"{', '.join(PROMPTED)}, or lookup:WORDING with {', '.join([*WORDINGS, CLOSE])}"
CARD = "a file, a folder that holds one, or a name that `sharpmax cards` lists"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    whole = Parser(prog="sharpmax")
    describe(
        whole,
        "Keep attention sharp as inputs grow: diagnose a model, fit a policy, serve it, reproduce the results.",
        "sharpmax doctor smollm2             # from the symptom to a card, or to the finding that none helps",
        "sharpmax reproduce --quick          # the theorem and the paper's experiment, in runs/report.html",
    )
    status = (
        "exit status: 0 done, 1 a benchmark's result is wrong or a cell of compare failed, 2 something to correct, "
        "3 no gain, 4 undecided, 130 interrupted, 141 nobody reads the output"
    )
    whole.epilog = f"{whole.epilog}\n\n{status}"
    whole.add_argument("--version", action="version", version=f"sharpmax {__version__}", help="show the version")
    verbs = whole.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    for name, (add, said) in VERBS.items():
        add(verbs.add_parser(name, help=said))
    return whole


def _reproduce(parser: argparse.ArgumentParser) -> None:
    describe(
        parser,
        "Run one experiment, or the default ones, and gather their pages into OUT/report.html.",
        "sharpmax reproduce                                # the theorem and the paper's experiment: minutes",
        "sharpmax reproduce alternatives --quick --seed 1  # one experiment, much smaller",
    )
    _run_options(parser, out=Path(defaults.OUT), seed=defaults.SEED, quick=False, debug=False, quiet=False)
    by_default = " and ".join(experiment.name for experiment in EXPERIMENTS if experiment.by_default)
    names = parser.add_subparsers(dest="experiment", metavar="EXPERIMENT", title=f"experiments (default: {by_default})")
    for experiment in EXPERIMENTS:
        one = names.add_parser(experiment.name, help=experiment.claim)
        command = f"sharpmax reproduce {experiment.name}"
        whole = f"{command} --full" if "--full" in experiment.options else command
        describe(one, f"{experiment.claim[0].upper()}{experiment.claim[1:]}.", f"{command} --quick", whole)
        one.epilog = f"{one.epilog}\n\ntime: {experiment.cost}; with --quick {experiment.quick_cost}"
        # A default here would undo the same option given before the experiment's name: it is shown alone.
        _run_options(one, *[argparse.SUPPRESS] * 5)
        _own_options(one, "this experiment", experiment.options)


def _run_options(
    parser: argparse.ArgumentParser, out: object, seed: object, quick: object, debug: object, quiet: object
) -> None:
    add = group(parser, RUN).add_argument
    shown = [
        f" (default: {usual})" * (given is argparse.SUPPRESS)
        for given, usual in ((out, defaults.OUT), (seed, defaults.SEED))
    ]
    add("--out", type=path, default=out, help=f"folder of the runs and the report{shown[0]}")
    add(
        "--seed",
        type=int,
        default=seed,
        metavar="N",
        help=f"seed of the random draws; fixed data and exams stay{shown[1]}",
    )
    smaller = ": what is not given is smaller than the defaults named here"
    add("--quick", action="store_true", default=quick, help=f"a much smaller run, to see that it works{smaller}")
    _quiet(parser, quiet)
    _debug(parser, debug)


def _bench(parser: argparse.ArgumentParser) -> None:
    describe(
        parser,
        "Check a result of ours, then time it in turns with its alternative on this machine.",
        "sharpmax bench softmax",
        "sharpmax bench attention --only ours --json attention.json",
    )
    names = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for benchmark in BENCHMARKS:
        one = names.add_parser(benchmark.name, help=benchmark.question)
        command = f"sharpmax bench {benchmark.name}"
        keeping = f"{command} --json {benchmark.name}.json    # keep the figures"
        describe(one, f"Measure {benchmark.question}.", command, keeping)
        said = "write the figures to FILE too (attention and model: after every result)"
        group(one, RUN).add_argument("--json", type=path, metavar="FILE", help=said)
        _quiet(one)
        _debug(one)
        _own_options(one, "this benchmark", benchmark.options)


def _own_options(parser: argparse.ArgumentParser, title: str, options: Any) -> None:
    for flag, keywords in options.items():
        group(parser, title).add_argument(flag, **{"default": argparse.SUPPRESS, **keywords})


def _models(parser: argparse.ArgumentParser) -> None:
    describe(
        parser,
        "List the pretrained models that can be fetched by name, with their size and licence.",
        "sharpmax models",
        "sharpmax diagnose minilm    # use one by its name",
    )
    _debug(parser)


def _cards(parser: argparse.ArgumentParser) -> None:
    describe(
        parser,
        "List the policy cards that come with sharpmax, with what each was judged to be worth.",
        "sharpmax cards",
        "sharpmax evaluate smollm2 --card smollm2    # judge one again",
    )
    _debug(parser)


def _diagnose(parser: argparse.ArgumentParser) -> None:
    describe(
        parser,
        "Measure every head at every length, and write JSON, figures and an interactive page.",
        "sharpmax diagnose smollm2 --task lookup",
        "sharpmax diagnose ./my-model --text book.txt --lengths 256 1024 4096",
    )
    _model_options(parser)
    reading = group(parser, "what to read")
    what = reading.add_mutually_exclusive_group()
    text_help = "files to read, one after the other, up to the longest length (default: source code of Python itself)"
    what.add_argument("--text", dest="texts", type=path, nargs="+", default=(), metavar="FILE", help=text_help)
    what.add_argument("--task", help=f"prompts instead of text: {TASKS}")
    number = _number(reading)
    lengths_help = (
        "tokens of text (default: 64, 128, … 4096, as far as model and text reach), or items of a prompt (default: 4, "
        "8, … 128); beside those of an earlier run in the same folder"
    )
    number("--lengths", lengths_help, (), nargs="+")
    number("--rows", f"query rows of a text observed at each length (default: {defaults.ROWS})")
    number("--prompts", f"prompts of a task at each length (default: {defaults.ASKED})", dest="asked")
    _number(group(parser, RUN))("--seed", "seed of the prompts", defaults.SEED)
    _device(parser)


def _certify(parser: argparse.ArgumentParser) -> None:
    describe(
        parser,
        "Bound every head's logits by its weights, and show beside the proof what a text really does.",
        "sharpmax certify smollm2",
        "sharpmax certify ./my-model --text book.txt --length 2048 --card card.json",
    )
    _model_options(parser)
    reading = group(parser, "what to read")
    text_help = "text to measure spreads on (default: source code of Python itself)"
    reading.add_argument("--text", type=path, metavar="FILE", help=text_help)
    length = f"tokens of it to read (default: {defaults.CERTIFIED_LENGTH}, or as many as there are)"
    _number(reading)("--length", length)
    reading.add_argument("--card", type=path, metavar="CARD", help=f"certify the model under this card: {CARD}")
    _device(parser)


def _calibrate(parser: argparse.ArgumentParser) -> None:
    describe(
        parser,
        "Fit a temperature to every head and judge it on held-out data; exit 3, and no card, if nothing gains, 4 if "
        "more text must tell.",
        "sharpmax calibrate smollm2 --quick                          # a first verdict in minutes",
        "sharpmax calibrate ./my-model --device cuda --text my.txt   # judged on your own text",
    )
    _model_options(parser)
    fitting = group(parser, "how to fit")
    add, number = fitting.add_argument, _number(fitting)
    quick = "a first verdict in about ten minutes on two cores: a small fit, and text in short windows only"
    add("--quick", action="store_true", help=quick)
    method = "a card by match, learn or search; or a scale, merged"
    add("--method", choices=defaults.METHODS, default="learn", help=method)
    add("--fit-tasks", nargs="+", default=defaults.FIT_TASKS, metavar="TASK", help=f"tasks to fit on: {TASKS}; recall")
    low, high = defaults.FIT_SIZES
    sizes_help = f"entries of a question to fit on (default: {low} {high})"
    number("--fit-sizes", sizes_help, nargs=2, metavar=("LOW", "HIGH"))
    before_help = f"characters of text before a question, at most; learn only (default: {defaults.TEXT_BEFORE})"
    number("--text-before", before_help)
    number("--steps", f"training steps; learn only (default: {defaults.LEARN_STEPS})")
    number("--questions-a-step", f"questions per step; learn only (default: {defaults.QUESTIONS_PER_STEP})")
    number("--learning-rate", f"learning rate of Adam; learn only (default: {defaults.LEARN_RATE})", type=float)
    number("--penalty", "a fixed price of text; learn only (default: prices follow --most-rise)", type=float)
    add("--learned", help=f"which of a, b, c to learn; learn only (default: {defaults.LEARNED})")
    longer = group(parser, "how to read more than the trained context")
    extend = "times the trained context to read: fit, choose and judge there too (default: the trained context)"
    _number(longer)("--extend", extend, type=float, metavar="X")
    scalings = f"scaling of the positions, with --extend (default: {defaults.SCALING})"
    longer.add_argument("--scaling", choices=SCALINGS, help=scalings)
    number("--truth", f"weight of text's own loss, 0 to 1; learn only (default: {defaults.TRUTH})", type=float)
    _exam_options(parser)


def _evaluate(parser: argparse.ArgumentParser) -> None:
    describe(
        parser,
        "Judge a card on prompts and text, paired with the plain model; exit 3 if it does not gain, 4 if more "
        "text must tell.",
        "sharpmax evaluate smollm2 --card smollm2 --quick --tasks lookup:parcel needle",
        "sharpmax evaluate ./my-model --card card.json --text my.txt --windows 1024 4096",
    )
    _model_options(parser)
    add = group(parser, "how to judge").add_argument
    add("--card", type=path, required=True, metavar="CARD", help=f"the card to judge: {CARD}")
    quick = "a first verdict: 24 questions at each of 16 and 32 entries, text in windows of 256 tokens; unless given"
    add("--quick", action="store_true", help=quick)
    _exam_options(parser)


def _exam_options(parser: argparse.ArgumentParser) -> None:
    judging = group(parser, "how to judge")
    add, number = judging.add_argument, _number(judging)
    add("--tasks", nargs="+", default=defaults.EXAM_TASKS, metavar="TASK", help=f"tasks to judge on: {TASKS}")
    # No defaults here: with --quick others are usual, and what was typed is kept.
    asked: dict[str, Any] = {"default": argparse.SUPPRESS}
    number("--sizes", f"entries of a question (default: {' '.join(map(str, defaults.EXAM_SIZES))})", nargs="+", **asked)
    number("--prompts", f"prompts per task and size (default: {defaults.PROMPTS})", **asked)
    usual = " ".join(map(str, defaults.WINDOWS))
    number("--windows", f"tokens per window of text (default: those of {usual} that the model holds)", nargs="+")
    add("--text", type=path, metavar="FILE", help="the text (default: Python's reference and source, NumPy)")
    number("--text-tokens", f"tokens of each kind of text (default: {defaults.TEXT_TOKENS})", **asked)
    most_rise = "allowed rise of perplexity, as a share: 0.005 is half a percent"
    number("--most-rise", most_rise, defaults.MOST_RISE, type=float)
    number = _number(group(parser, RUN))
    number("--together", "tokens read at once, about; 1: one text at a time", defaults.TOGETHER)
    number("--seed", "seed of every draw", defaults.SEED)
    _device(parser)


def _doctor(parser: argparse.ArgumentParser) -> None:
    describe(
        parser,
        "Go the whole way in one command: does the model get worse with length, which heads disperse, does a card "
        "help, and what does it cost.",
        "sharpmax doctor smollm2",
        "sharpmax doctor ./my-model --task needle --device cuda",
    )
    _model_options(parser)
    add = group(parser, "what to judge").add_argument
    usual = "default: the one shipped for the model; else one is fitted as by calibrate --quick"
    add("--card", type=path, metavar="CARD", help=f"the card to judge ({usual}): {CARD}")
    add("--task", default="lookup", help=f"the symptom: {TASKS}")
    _number(group(parser, RUN))("--seed", "seed of every draw", defaults.SEED)
    _device(parser)


def _finetune(parser: argparse.ArgumentParser) -> None:
    describe(
        parser,
        "Train a model on CLRS-Text with a policy in every head, judge it on longer inputs, and keep it.",
        "sharpmax finetune smollm2 --policy paper --compile --device cuda",
        "sharpmax finetune gemma-tiny --policy learn --steps 20 --tokens 1024 --algorithms minimum",
    )
    _model_options(parser)
    training = group(parser, "how to train")
    add, number = training.add_argument, _number(training)
    add("--policy", default=defaults.POLICY, help=f"none, paper, ssmax, learn, or a card: {CARD}")
    number("--steps", "training steps", defaults.TRAIN_STEPS)
    number("--tokens", "tokens per step and process", defaults.TRAIN_TOKENS)
    number("--at-once", "tokens in memory together (default: a whole step)")
    add("--compile", action="store_true", help="compile the model's blocks: faster on a GPU")
    number("--learning-rate", "learning rate of the weights", defaults.TRAIN_RATE, type=float)
    number("--policy-rate", "learning rate of what the policy learns", defaults.POLICY_RATE, type=float)
    number("--lora", "rank of a LoRA to train instead of the weights (default: train the weights)")
    data = group(parser, "what to train on, and to ask")
    add, number = data.add_argument, _number(data)
    add("--task", default=defaults.TASK, help="what to train on")
    add("--algorithms", nargs="+", metavar="NAME", help="some of the thirty (default: all)")
    number("--train-lengths", "lengths of the inputs, in items", defaults.TRAIN_LENGTHS, nargs="+")
    number("--test-lengths", "lengths asked, in items", defaults.TEST_LENGTHS, nargs="+")
    number("--examples", "examples to train on", defaults.TRAIN_EXAMPLES)
    number("--test-samples", "questions of each algorithm, length and validation seed", defaults.TEST_SAMPLES)
    add("--hints", action="store_true", help="answers show the algorithm's trace")
    run = group(parser, RUN)
    _number(run)("--save-every", "steps between checkpoints; 0: none", defaults.SAVE_EVERY)
    run.add_argument("--tensorboard", action="store_true", help="write the loss for TensorBoard as well")
    _number(run)("--seed", "seed of the order of the data", defaults.SEED)
    _device(parser, "a GPU if there is one")


def _compare(parser: argparse.ArgumentParser) -> None:
    describe(
        parser,
        "Train small Transformers with other mechanisms in softmax's place, ask them on longer inputs, and write "
        "OUT/compare/…/leaderboard.html.",
        "sharpmax compare --quick",
        "sharpmax compare --tasks recall share --arms paper entmax clipped:Clipped",
        "sharpmax compare --list",
    )
    _run_options(parser, out=Path(defaults.OUT), seed=defaults.SEED, quick=False, debug=False, quiet=False)
    cells = group(parser, "what to compare")
    add, number = cells.add_argument, _number(cells)
    add("--tasks", nargs="+", default=(), metavar="TASK", help="tasks with a size dial (default: all)")
    arms_help = "mechanisms by name (--list shows them), or MODULE:ATTRIBUTE of your own (default: fifteen)"
    add("--arms", nargs="+", default=(), metavar="ARM", help=arms_help)
    models_help = "sizes of the model: tiny, 0.3M, 1M, 3M, 10M, 30M (default: 1M)"
    add("--models", nargs="+", default=(), metavar="MODEL", help=models_help)
    number("--largest", "the largest size asked, in the task's unit (default: all sizes, up to 32,768 tokens)")
    add("--list", dest="listed", action="store_true", help="print the mechanisms, tasks and models, and end")
    number("--seeds", "models per cell (default: 5; quick: 3)")
    training = group(parser, "how to train")
    add, number = training.add_argument, _number(training)
    number("--steps", "training steps (default: 3000; quick: 20)")
    number("--batch", "sequences per step and model (default: 256; quick: 8)")
    rates_help = "learning rates to choose from, on a spare seed (default: 0.001 0.003)"
    number("--rates", rates_help, (), type=float, nargs="+", metavar="RATE")
    positions_help = "what heads know of places: ALiBi in half of them, in all, none, or RoPE"
    add("--positions", choices=("half", "alibi", "none", "rope"), default="half", help=positions_help)
    precision_help = "precision of products in training (default: bf16 on a GPU, float32 on a CPU)"
    add("--precision", choices=("float32", "tf32", "bf16"), help=precision_help)
    compile_help = "compile a layer, or not (default: on a GPU)"
    add("--compile", dest="compiled", action=argparse.BooleanOptionalAction, help=compile_help)
    run = group(parser, RUN)
    run.add_argument("--engine", choices=("local", "ray"), default="local", help="where cells are computed")
    run.add_argument("--address", help="address of a Ray cluster (default: one that is started here)")
    _number(run)("--jobs", "processes that compute cells at once on this machine", 1)
    threads_help = "threads of a CPU (default: 1 for models below 0.5M parameters, else what PyTorch chooses)"
    _number(run)("--threads", threads_help)
    _device(parser, "a GPU if there is one")


def _monitor(parser: argparse.ArgumentParser) -> None:
    describe(
        parser,
        "Show a watched training run: every head's largest logit and entropy at every step, as a page.",
        "sharpmax monitor runs/watch",
        "sharpmax monitor runs/watch --live --interval 10    # keep the page up to date",
    )
    folder = "the folder of the record that `watch(model, record=…)` writes, or its file"
    parser.add_argument("run", type=path, metavar="RUN", help=folder)
    add = group(parser, RUN).add_argument
    add("--out", type=path, metavar="FILE", help="the page (default: RUN/monitor.html)")
    add("--live", action="store_true", help="keep the page up to date while the run goes on, until Ctrl-C")
    add("--interval", type=float, default=5.0, metavar="S", help="seconds between two looks, with --live")
    _debug(parser)


def _serve_check(parser: argparse.ArgumentParser) -> None:
    describe(
        parser,
        "Ask a running OpenAI-compatible server lookups over HTTP, beside a plain server or the card's own record; "
        "exit 3 if the card does not act, 4 if nothing tells.",
        "sharpmax serve-check http://127.0.0.1:8001 --plain http://127.0.0.1:8000",
        "sharpmax serve-check http://127.0.0.1:8001 --card card.json --sizes 32 --prompts 40",
    )
    parser.add_argument("url", metavar="URL", help="the server with the card, as http://127.0.0.1:8000")
    add = group(parser, "what to compare").add_argument
    add("--plain", metavar="URL", help="the same model served without the card")
    add(
        "--card",
        type=path,
        metavar="FILE",
        help=f"the card, whose record says what to expect where no plain server is named: {CARD}",
    )
    add("--model", help="the name that the servers know the model by (default: the first that they list)")
    number = _number(group(parser, "how to judge"))
    number("--sizes", "entries of a question", defaults.EXAM_SIZES, nargs="+")
    number("--prompts", "questions per size", defaults.SERVED_PROMPTS)
    number = _number(group(parser, RUN))
    number("--together", "questions asked at once", defaults.SERVED_TOGETHER)
    number("--timeout", "seconds until a server must have ended an answer", defaults.SERVED_TIMEOUT, type=float)
    number("--seed", "seed of the questions", defaults.SEED)
    _quiet(parser)
    _debug(parser)


def _number(parser: Any) -> Callable[..., None]:
    """Return what adds an option that takes one or several numbers, N unless named otherwise."""

    def add(flag: str, said: str, default: Any = None, **keywords: Any) -> None:
        parser.add_argument(flag, help=said, default=default, **{"type": int, "metavar": "N", **keywords})

    return add


def path(text: str) -> Path:
    """Return the path that was typed, with a "~" in front for the home folder: no shell expands it in --out=~/runs."""
    if not text:  # as of a shell's variable that is not set: it would be the working folder
        raise argparse.ArgumentTypeError("expected a path, got an empty one")
    return Path(text).expanduser() if text == "~" or text.startswith("~/") else Path(text)


def _quiet(parser: argparse.ArgumentParser, default: object = False) -> None:
    say = "show no progress, only the result"
    group(parser, RUN).add_argument("--quiet", action="store_true", default=default, help=say)


def _model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a name that `sharpmax models` lists, a local folder, or a name on the hub")
    parser.add_argument("--accept-license", action="store_true", help="use weights whose licence restricts their use")
    group(parser, RUN).add_argument("--out", type=path, default=Path(defaults.OUT), help="folder of the runs")
    _quiet(parser)
    _debug(parser)


def _device(parser: argparse.ArgumentParser, usual: str = "cpu") -> None:
    group(parser, RUN).add_argument("--device", help=f"where to run: cpu or cuda (default: {usual})")


def _debug(parser: argparse.ArgumentParser, default: object = False) -> None:
    say = "show the traceback of an error"
    group(parser, RUN).add_argument("--debug", action="store_true", default=default, help=say)


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
