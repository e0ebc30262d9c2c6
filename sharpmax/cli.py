"""The command line: one command a verb, each a thin layer over a Python function of the same meaning.

The lists of experiments and benchmarks are data, and what they name is imported when it runs, so `sharpmax --help` is
quick and needs no extra.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from sharpmax import __version__
from sharpmax.bench import BENCHMARKS, bench
from sharpmax.experiments import EXPERIMENTS, reproduce
from sharpmax.extras import MissingExtraError

USER_ERRORS = (ValueError, TypeError, OSError, MissingExtraError)
EXIT_USER_ERROR, EXIT_INTERRUPTED = 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 2 for what the user can mend, 130 for Ctrl-C."""
    options = vars(_parser().parse_args(arguments))
    verb, debug = options.pop("verb"), options.pop("debug", False)
    try:
        VERBS[verb](**options)
    except KeyboardInterrupt:
        return _say("interrupted; the same command continues where this one stopped", EXIT_INTERRUPTED)
    except USER_ERRORS as error:
        if debug:
            raise
        return _say(f"error: {error}", EXIT_USER_ERROR)
    return 0


def _reproduce(experiment: str | None, **options: Any) -> None:
    report = reproduce([experiment] if experiment else (), **options)
    print(f"report: {report}")


def _bench(benchmark: str, **options: Any) -> None:
    bench(benchmark, **options)


def _models() -> None:
    from sharpmax.hf.listing import print_models

    print_models()


VERBS: dict[str, Callable[..., None]] = {"reproduce": _reproduce, "bench": _bench, "models": _models}


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors take one line."""

    def error(self, message: str) -> NoReturn:
        sys.exit(_say(f"error: {message} (see {self.prog} --help)", EXIT_USER_ERROR))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="sharpmax", description="Attention that stays sharp at any size.")
    parser.add_argument("--version", action="version", version=f"sharpmax {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    _add_reproduce(verbs.add_parser("reproduce", help="run the experiments and write report.html"))
    _add_bench(verbs.add_parser("bench", help="measure what sharpmax costs on this machine"))
    _add_debug(verbs.add_parser("models", help="list the pretrained models that can be fetched by name"), False)
    return parser


def _add_reproduce(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run one experiment, or all of them, and gather their pages into OUT/report.html."
    _add_run_options(parser, out=Path("runs"), seed=0, quick=False, debug=False)
    names = parser.add_subparsers(dest="experiment", metavar="EXPERIMENT", title="experiments (default: all)")
    for experiment in EXPERIMENTS:
        one = names.add_parser(experiment.name, help=experiment.claim, description=experiment.claim)
        # A default here would undo the same option given before the experiment's name.
        _add_run_options(one, *[argparse.SUPPRESS] * 4)
        for flag, keywords in experiment.options.items():
            one.add_argument(flag, **{"default": argparse.SUPPRESS, **keywords})


def _add_run_options(parser: argparse.ArgumentParser, out: object, seed: object, quick: object, debug: object) -> None:
    parser.add_argument("--out", type=Path, default=out, help="folder of the runs and the report (runs)")
    parser.add_argument("--seed", type=int, default=seed, help="seed of every random draw (0)")
    parser.add_argument("--quick", action="store_true", default=quick, help="a smaller run, in seconds")
    _add_debug(parser, debug)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    names = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for benchmark in BENCHMARKS:
        one = names.add_parser(benchmark.name, help=benchmark.question, description=benchmark.question)
        one.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as well")
        _add_debug(one, False)
        for flag, keywords in benchmark.options.items():
            one.add_argument(flag, **{"default": argparse.SUPPRESS, **keywords})


def _add_debug(parser: argparse.ArgumentParser, default: object) -> None:
    parser.add_argument("--debug", action="store_true", default=default, help="show the traceback of an error")


def _say(message: str, status: int) -> int:
    """Print one line, whatever the message holds, and return the exit status."""
    print(f"sharpmax: {' '.join(message.split())}", file=sys.stderr)
    return status
