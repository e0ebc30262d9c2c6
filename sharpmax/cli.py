"""The command line: one command a verb, each a thin layer over a Python function of the same meaning.

The lists of experiments and benchmarks are data, and what they name is imported when it runs, so `sharpmax --help` is
quick and needs no extra.
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from sharpmax import __version__
from sharpmax.bench import BENCHMARKS, bench
from sharpmax.commands.arguments import require_utf8, require_within_limits
from sharpmax.experiments import EXPERIMENTS, reproduce
from sharpmax.extras import MissingExtraError
from sharpmax.terminal import OutputClosedError, OutputError, lacking, printable_output

USER_ERRORS = (ValueError, TypeError, OSError, NotImplementedError, MissingExtraError)
EXIT_WRONG, EXIT_USER_ERROR, EXIT_NO_GAIN, EXIT_UNDECIDED, EXIT_INTERRUPTED = 1, 2, 3, 4, 130
EXIT_OUTPUT_CLOSED = 141  # as of a program that SIGPIPE has ended
EXIT_BY_VERDICT = {"gains": 0, "no gain": EXIT_NO_GAIN, "undecided": EXIT_UNDECIDED}
CONTINUING = frozenset({"reproduce", "calibrate", "finetune"})
"""The commands that keep their steps; the others start afresh."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    That is 0, 2 for what the user can mend, 3 for no gain, 4 for a gain that is undecided, 130 for Ctrl-C, 141 when
    nobody reads the output any more.
    """
    try:
        with printable_output():
            return _run(sys.argv[1:] if arguments is None else arguments)
    except OutputClosedError:
        return EXIT_OUTPUT_CLOSED
    except OutputError as error:
        return _say(f"error: {error}", EXIT_USER_ERROR)


def _run(arguments: Sequence[str]) -> int:
    verb, debug = "", False
    try:
        require_utf8(arguments)
        options = vars(_parser().parse_args(arguments))
        verb, debug = options.pop("verb"), options.pop("debug", False)
        require_within_limits(options)
        with warnings.catch_warnings():
            warnings.showwarning = _each_warning_once()
            return VERBS[verb](**options) or 0
    except KeyboardInterrupt:
        after = "the same command continues where this one stopped" if verb in CONTINUING else "nothing was kept"
        return _say(f"interrupted; {after}", EXIT_INTERRUPTED)
    except Exception as error:
        if debug or not (isinstance(error, USER_ERRORS) or lacking(error)):
            raise
        return _say(f"error: {_told(error)}", EXIT_USER_ERROR)


def _told(error: Exception) -> str:
    """Return what an error says; of the system's own, the file and what is wrong with it, without a number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return f"not enough {what}: {error}" if (what := lacking(error)) else str(error)


def _each_warning_once() -> Callable[..., None]:
    """Say a warning as errors are said, without the line of our code that it came from, and not again.

    Python itself forgets what it has said whenever some library changes the filters.
    """
    said = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in said:
            said.add(str(message))
            print(f"sharpmax: warning: {message}", file=sys.stderr)

    return show


def _reproduce(experiment: str | None, **options: Any) -> None:
    report = reproduce([experiment] if experiment else (), **options)
    print(f"report: {report}")


def _bench(benchmark: str, **options: Any) -> int:
    try:
        bench(benchmark, **options)
    except ArithmeticError as wrong:
        return _say(f"wrong: {wrong}", EXIT_WRONG)
    return 0


def _models() -> None:
    from sharpmax.commands.models import print_models

    print_models()


def _diagnose(**options: Any) -> None:
    from sharpmax.commands.diagnose import diagnose, print_diagnosis

    print_diagnosis(diagnose(**options))


def _certify(**options: Any) -> None:
    from sharpmax.commands.certify import certify, print_certificates

    print_certificates(certify(**options))


def _calibrate(**options: Any) -> int:
    from sharpmax.commands.calibrate import calibrate, print_judgement

    result = calibrate(**options)
    print_judgement(result)
    return EXIT_BY_VERDICT[result["verdict"]]


def _evaluate(**options: Any) -> int:
    from sharpmax.commands.calibrate import evaluate, print_judgement

    result = evaluate(**options)
    print_judgement(result)
    return EXIT_BY_VERDICT[result["verdict"]]


def _finetune(**options: Any) -> None:
    from sharpmax.commands.finetune import finetune_model, print_finetuned

    print_finetuned(finetune_model(**{name: value for name, value in options.items() if value is not None}))


VERBS: dict[str, Callable[..., int | None]] = {
    "reproduce": _reproduce,
    "bench": _bench,
    "models": _models,
    "diagnose": _diagnose,
    "certify": _certify,
    "calibrate": _calibrate,
    "evaluate": _evaluate,
    "finetune": _finetune,
}


class _Help(argparse.HelpFormatter):
    """Help in which every option and command stands beside what it does."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def add_argument(self, action: argparse.Action) -> None:
        """Measure an argument; argparse forgets by how much commands are indented."""
        super().add_argument(action)
        if action.nargs == argparse.PARSER:
            self._action_max_length += self._indent_increment


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors take one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_Help, **options)

    def error(self, message: str) -> NoReturn:
        sys.exit(_say(f"error: {message} (see {self.prog} --help)", EXIT_USER_ERROR))


def _parser() -> argparse.ArgumentParser:
    status = (
        "exit status: 0 done, 1 a benchmark's result is wrong, 2 something to mend, 3 no gain, 4 undecided, "
        "130 interrupted"
    )
    parser = _Parser(prog="sharpmax", description="Attention that stays sharp at any size.", epilog=status)
    parser.add_argument("--version", action="version", version=f"sharpmax {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    _add_reproduce(verbs.add_parser("reproduce", help="run the experiments and write report.html"))
    _add_bench(verbs.add_parser("bench", help="measure what sharpmax costs on this machine"))
    _add_debug(verbs.add_parser("models", help="list the pretrained models that can be fetched by name"), False)
    _add_diagnose(verbs.add_parser("diagnose", help="see which heads of a model disperse as its input grows"))
    _add_certify(verbs.add_parser("certify", help="prove the size beyond which a head cannot be sharp"))
    _add_calibrate(verbs.add_parser("calibrate", help="fit a policy to a model, and judge it on held-out data"))
    _add_evaluate(verbs.add_parser("evaluate", help="judge a policy card on a model again"))
    _add_finetune(verbs.add_parser("finetune", help="fine-tune a model with a policy in every head"))
    return parser


def _add_reproduce(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run one experiment, or all of them, and gather their pages into OUT/report.html."
    _add_run_options(parser, out=Path("runs"), seed=0, quick=False, debug=False)
    names = parser.add_subparsers(
        dest="experiment", metavar="EXPERIMENT", title="experiments (default: bounds and max-retrieval)"
    )
    for experiment in EXPERIMENTS:
        one = names.add_parser(experiment.name, help=experiment.claim, description=experiment.claim)
        # A default here would undo the same option given before the experiment's name.
        _add_run_options(one, *[argparse.SUPPRESS] * 4)
        for flag, keywords in experiment.options.items():
            one.add_argument(flag, **{"default": argparse.SUPPRESS, **keywords})


def _add_run_options(parser: argparse.ArgumentParser, out: object, seed: object, quick: object, debug: object) -> None:
    parser.add_argument("--out", type=Path, default=out, help="folder of the runs and the report (runs)")
    parser.add_argument("--seed", type=int, default=seed, help="seed of every random draw (0)")
    parser.add_argument("--quick", action="store_true", default=quick, help="a much smaller run, to see that it works")
    _add_debug(parser, debug)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    names = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for benchmark in BENCHMARKS:
        one = names.add_parser(benchmark.name, help=benchmark.question, description=benchmark.question)
        one.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as well")
        _add_debug(one, False)
        for flag, keywords in benchmark.options.items():
            one.add_argument(flag, **{"default": argparse.SUPPRESS, **keywords})


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a name that `sharpmax models` lists, a local folder, or a name on the hub")
    parser.add_argument("--accept-license", action="store_true", help="use weights whose licence restricts their use")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the runs (runs)")
    _add_debug(parser, False)


def _add_diagnose(parser: argparse.ArgumentParser) -> None:
    parser.description = "Measure every head at every length; write JSON, figures and an interactive page."
    _add_model_options(parser)
    what = parser.add_mutually_exclusive_group()
    text_help = "files to read (source code of Python itself)"
    what.add_argument("--text", dest="texts", type=Path, nargs="+", default=(), metavar="FILE", help=text_help)
    what.add_argument("--task", help="prompts instead of text: maximum, lookup, needle or copy")
    lengths_help = (
        "tokens (64, 128, … as far as model and text reach), or items of a prompt (4, 8, … 128); beside those of an "
        "earlier run in the same folder"
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=(), metavar="N", help=lengths_help)
    parser.add_argument("--rows", type=int, default=64, help="query rows observed at each length (64)")
    _add_device(parser)
    parser.add_argument("--seed", type=int, default=0, help="seed of the prompts (0)")


def _add_certify(parser: argparse.ArgumentParser) -> None:
    parser.description = "Bound every head's logits by its weights; beside it, what a text shows."
    _add_model_options(parser)
    parser.add_argument("--text", type=Path, metavar="FILE", help="measure on this text (source code of Python itself)")
    parser.add_argument("--length", type=int, help="tokens of it to read (512, or as many as there are)")
    parser.add_argument("--card", type=Path, metavar="FILE", help="certify the model under this policy card")
    _add_device(parser)


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Fit a temperature to every head and judge it; exit 3, and no card, if nothing gains, 4 if more text must tell."
    )
    _add_model_options(parser)
    parser.add_argument("--method", choices=("match", "learn", "search"), default="learn", help="how to fit (learn)")
    fit_on, sizes = ("lookup", "lookup:close"), (8, 32)
    parser.add_argument("--fit-tasks", nargs="+", default=fit_on, metavar="TASK", help="what to fit on (lookup …)")
    parser.add_argument("--fit-sizes", type=int, nargs=2, default=sizes, metavar=("LOW", "HIGH"), help="sizes (8 32)")
    parser.add_argument("--text-before", type=int, default=12000, metavar="N", help="of learn: characters (12000)")
    parser.add_argument("--steps", type=int, default=108, help="of learn (108)")
    parser.add_argument("--questions-a-step", type=int, default=2, metavar="N", help="of learn (2)")
    parser.add_argument("--learning-rate", type=float, default=0.03, metavar="RATE", help="of learn (0.03)")
    parser.add_argument("--penalty", type=float, help="of learn: a fixed price of text (follows --most-rise)")
    parser.add_argument("--learned", default="abc", help="of learn: which of a, b, c (abc)")
    parser.add_argument("--truth", type=float, default=0.5, help="of learn: weight of text's own loss, 0 to 1 (0.5)")
    _add_exam_options(parser)


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Judge a card on prompts and text: accuracy, loss, perplexity, each paired with the plain model; exit 3 if it "
        "does not gain, 4 if more text must tell."
    )
    _add_model_options(parser)
    parser.add_argument("--card", type=Path, required=True, metavar="FILE", help="the policy card, or a model's folder")
    _add_exam_options(parser)


def _add_exam_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", nargs="+", default=("lookup",), metavar="TASK", help="what to judge on (lookup)")
    parser.add_argument("--sizes", type=int, nargs="+", default=(16, 32, 64), metavar="N", help="sizes (16 32 64)")
    parser.add_argument("--prompts", type=int, default=40, help="prompts a task and size (40)")
    windows = "of text (those of 256 1024 4096 that the model holds)"
    parser.add_argument("--windows", type=int, nargs="+", metavar="N", help=windows)
    parser.add_argument("--text", type=Path, metavar="FILE", help="the text (Python's reference and source, NumPy)")
    parser.add_argument("--text-tokens", type=int, default=32768, help="how much text of a kind (32768)")
    parser.add_argument("--most-rise", type=float, default=0.005, help="allowed rise of perplexity (0.005)")
    parser.add_argument("--together", type=int, default=1, metavar="TOKENS", help="read so many at once (one text)")
    _add_device(parser)
    parser.add_argument("--seed", type=int, default=0, help="seed of every draw (0)")


def _add_finetune(parser: argparse.ArgumentParser) -> None:
    parser.description = "Train a model on CLRS-Text with a policy in every head, judge it on longer inputs, keep it."
    _add_model_options(parser)
    parser.add_argument("--task", default="clrs-text", help="what to train on (clrs-text)")
    parser.add_argument("--policy", default="none", help="none, paper, ssmax, learn, or the path of a card (none)")
    parser.add_argument("--steps", type=int, help="how long (500)")
    parser.add_argument("--tokens", type=int, help="tokens a step and process (32768)")
    parser.add_argument("--at-once", type=int, metavar="N", help="tokens in memory together (a whole step)")
    parser.add_argument("--compile", action="store_true", help="compile the model's blocks: faster on a GPU")
    parser.add_argument("--learning-rate", type=float, help="of the weights (5e-4)")
    parser.add_argument("--policy-rate", type=float, help="of what the policy learns (3e-3)")
    parser.add_argument("--lora", type=int, metavar="RANK", help="train a LoRA of this rank instead of the weights")
    parser.add_argument("--algorithms", nargs="+", metavar="NAME", help="of the thirty (all)")
    parser.add_argument("--train-lengths", type=int, nargs="+", metavar="N", help="of the inputs (4 to 16)")
    parser.add_argument("--test-lengths", type=int, nargs="+", metavar="N", help="(8 12 16 20 24 32)")
    parser.add_argument("--examples", type=int, help="to train on (81920)")
    parser.add_argument("--test-samples", type=int, help="of each algorithm, length and validation seed (4)")
    parser.add_argument("--hints", action="store_true", help="answers show the algorithm's trace")
    parser.add_argument("--save-every", type=int, metavar="N", help="steps from checkpoint to checkpoint (200)")
    parser.add_argument("--tensorboard", action="store_true", help="write the loss for TensorBoard as well")
    parser.add_argument("--device", help="where to run: cpu, cuda (a GPU if there is one)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the data (0)")


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="where to run: cpu, cuda (cpu)")


def _add_debug(parser: argparse.ArgumentParser, default: object) -> None:
    parser.add_argument("--debug", action="store_true", default=default, help="show the traceback of an error")


def _say(message: str, status: int) -> int:
    """Print one line, whatever the message holds, and return the exit status."""
    print(f"sharpmax: {' '.join(message.split())}", file=sys.stderr)
    return status
