"""Run one command per verb, each a thin layer over a Python function of the same meaning.

What a command needs is imported when it runs, so `sharpmax --help` is quick and needs no extra.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from sharpmax.bench import bench
from sharpmax.commands.arguments import require_known_names, require_utf8, require_within_limits
from sharpmax.commands.options import EXIT_USER_ERROR, parser
from sharpmax.experiments import EXPERIMENTS, reproduce
from sharpmax.extras import MissingExtraError
from sharpmax.runs.progress import say_first, shown, stage
from sharpmax.terminal import OutputClosedError, OutputError, lacking, printable_output

USER_ERRORS = (ValueError, TypeError, OSError, NotImplementedError, MissingExtraError)
EXIT_WRONG, EXIT_NO_GAIN, EXIT_UNDECIDED, EXIT_INTERRUPTED = 1, 3, 4, 130
EXIT_OUTPUT_CLOSED = 141  # as of a program that SIGPIPE has ended
EXIT_BY_VERDICT = {"gains": 0, "no gain": EXIT_NO_GAIN, "undecided": EXIT_UNDECIDED}
CONTINUING = frozenset({"reproduce", "compare", "calibrate", "evaluate", "doctor", "finetune"})
"""The commands that keep their steps; the others start afresh."""


LONG = CONTINUING | {"bench", "diagnose", "certify", "serve-check"}
"""The commands that show how far they are."""


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
        options = vars(parser().parse_args(arguments))
        verb, debug = options.pop("verb"), options.pop("debug", False)
        require_within_limits(options)
        require_known_names(verb, options)
        with warnings.catch_warnings(), shown(quiet=options.get("quiet", verb not in LONG)):
            warnings.showwarning = _each_warning_once()
            return VERBS[verb](**options) or 0
    except KeyboardInterrupt as stopped:
        after = "the same command continues where this one stopped" if verb in CONTINUING else "nothing was kept"
        after = str(stopped) or after
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
    """Return what prints a warning as errors are printed, once, without the line of our code that it came from.

    Python itself forgets what it has shown whenever some library changes the filters.
    """
    said = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in said:
            said.add(str(message))
            print(f"sharpmax: warning: {message}", file=sys.stderr)

    return show


def _reproduce(experiment: str | None, quiet: bool = False, **options: Any) -> None:
    chosen = [one for one in EXPERIMENTS if one.name == experiment or (experiment is None and one.by_default)]
    for one in chosen:
        say_first(f"{one.name} takes {one.quick_cost if options.get('quick') else one.cost}")
    with stage(f"reproducing {', '.join(one.name for one in chosen)}", begins=False):
        report = reproduce([experiment] if experiment else (), **options)
    print(f"report: {report}")
    print("next: open it in a browser; `sharpmax reproduce --help` lists the other experiments")


def _compare(quiet: bool = False, **options: Any) -> int:
    with stage("importing torch", begins=False):
        from sharpmax.commands.compare import compare_and_print

    return EXIT_WRONG if compare_and_print(**options) else 0


def _bench(benchmark: str, quiet: bool = False, **options: Any) -> int:
    try:
        bench(benchmark, **options)
    except ArithmeticError as wrong:
        return _say(f"wrong: {wrong}", EXIT_WRONG)
    return 0


def _models() -> None:
    from sharpmax.commands.models import print_models

    print_models()


def _cards() -> None:
    from sharpmax.commands.cards import print_cards

    print_cards()


def _verb_of_hf(name: str) -> Callable[..., int]:
    """Return what runs a verb of `sharpmax.hf`, prints what it found, where that is, and what to type next."""

    def run(**options: Any) -> int:
        with stage("importing torch and transformers"):
            verb = getattr(import_module("sharpmax.hf"), name)
        result = verb(**options)
        print(result.summary())
        print(result.closing())
        return EXIT_BY_VERDICT.get(result.metrics.get("verdict"), 0)

    return run


def _finetune(quiet: bool = False, **options: Any) -> None:
    with stage("importing torch and transformers"):
        from sharpmax.commands.finetune import finetune_model, print_finetuned

    print_finetuned(finetune_model(**{name: value for name, value in options.items() if value is not None}))


def _monitor(run: Any, **options: Any) -> None:
    from sharpmax.commands.monitor import print_monitor

    print_monitor(run, **options)


def _serve_check(quiet: bool = False, **options: Any) -> int:
    from sharpmax.commands.serve_check import print_serve_check, serve_check

    result = serve_check(**options)
    print_serve_check(result)
    return {"acts": 0, "does not act": EXIT_NO_GAIN}.get(result["verdict"], EXIT_UNDECIDED)


VERBS: dict[str, Callable[..., int | None]] = {
    "reproduce": _reproduce,
    "compare": _compare,
    "bench": _bench,
    "models": _models,
    "cards": _cards,
    **{name: _verb_of_hf(name) for name in ("diagnose", "certify", "calibrate", "evaluate", "doctor")},
    "finetune": _finetune,
    "monitor": _monitor,
    "serve-check": _serve_check,
}


def _say(message: str, status: int) -> int:
    """Print one line, whatever the message holds, and return the exit status."""
    print(f"sharpmax: {' '.join(message.split())}", file=sys.stderr)
    return status
