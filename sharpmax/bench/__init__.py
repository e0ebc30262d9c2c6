"""Measuring what sharpmax costs: each benchmark checks the result first, then times it against the alternative.

A benchmark is a module with `measure(**options)`, which returns the figures, and `show(figures)`, which gives them as a
table for the terminal; it may have `draw_figure(figures, folder, name)`, and `wrong(figures)`, what of ours failed. One
of many results says each, and keeps it (`so_far.keep`), as soon as it is there. A benchmark is listed here as data, and
imported only when it runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from sharpmax.bench.so_far import kept
from sharpmax.extras import MissingExtraError
from sharpmax.files import atomic
from sharpmax.files.untrusted import read_json
from sharpmax.flags import DEVICE, listed, number, one_of, several, switch, word
from sharpmax.runs.provenance import provenance
from sharpmax.terminal import printable


@dataclass(frozen=True)
class Benchmark:
    """One entry of the list: what `sharpmax bench NAME` runs, with its own options as argparse takes them."""

    name: str
    question: str
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """Where its `measure` and `show` are."""
        return f"{__name__}.{self.name.replace('-', '_')}"


BENCHMARKS = (
    Benchmark(
        "attention",
        "what sharpened attention costs beside the framework's own, on this machine's GPU or CPU",
        {
            "--framework": one_of("torch", "jax", said="whose attention (default: torch)"),
            "--lengths": several("N", "tokens per sequence (default: by device)", int),
            "--widths": several("D", "features of a head (default: 128 64)", int),
            "--repeats": number("timed calls of each, interleaved (default: 15)"),
            "--only": several(
                "PART",
                "of ours, policies, statistics, memory, profile, math, flex, by-hand, compiled, entmax, "
                "adasplash, and on a GPU heads, short, float16, float32, masks, decode; of jax: ours, policies, "
                "memory (default: all)",
            ),
            "--threads": number("threads, where there is no GPU (default: 2; JAX takes all cores)"),
            "--draw": {"type": Path, "metavar": "FILE", "help": "measure nothing: draw again what --json wrote"},
        },
    ),
    Benchmark(
        "diagnose",
        "what a diagnosis of every head costs beside a plain forward pass over the same text",
        {
            "--model": word("what to diagnose (default: smollm2)"),
            "--length": number("tokens of the text (default: 8192)"),
            "--repeats": number("turns of each (default: 1)"),
        },
    ),
    Benchmark(
        "finetune",
        "how fast a model trains with a policy in every head, beside plain attention",
        {
            "--model": word("what to train (default: smollm2)"),
            "--steps": number("steps in each turn (default: 10)"),
            "--tokens": number("tokens per step (default: 32768)"),
            "--repeats": number("turns of each policy, interleaved (default: 3)"),
            "--policies": several("NAME", "beside none: paper, ssmax, learn, or cards (default: all)"),
            "--compile": switch("measure the model with compiled blocks as well"),
            **DEVICE,
        },
    ),
    Benchmark(
        "model",
        "how fast a whole model reads, generates and trains with a policy in every head, host time included",
        {
            "--models": several(
                "NAME",
                "shapes with random weights (smollm2, llama-1b, gemma-2b, tiny) or real models by name or "
                "folder (default: the first three on a GPU, tiny on a CPU)",
            ),
            "--policies": several(
                "NAME",
                "beside plain attention: constant, paper, card, entropy-target (default: all; three where compiled)",
            ),
            "--only": several(
                "CASE",
                "'generate', 'prefill', 'padded prefill', 'padded generate', 'static generate', 'training "
                "step' (default: all, in this order)",
            ),
            "--lengths": several("N", "tokens of a prompt (default: by case and device; compiled, one length)", int),
            "--new-tokens": number("tokens to generate (default: 32)"),
            "--repeats": number("timed calls of each, in turns; at least 3 of one that is slow (default: 5)"),
            "--seconds": number("start no further case after so long (default: no limit)", float, "S"),
            "--card": word("a card to time (default: random numbers per head)", "FILE"),
            **DEVICE,
        },
    ),
    Benchmark(
        "serving",
        "what a card costs where models are served: paged decode, and continuous batching",
        {
            "--only": several("PART", "of decode, batching (default: both)"),
            "--requests": number("requests served at once, on a GPU (default: 64)"),
            "--new-tokens": number("tokens of each answer, on a GPU (default: 64)"),
            "--repeats": number("timed calls of each, in turns; of batching two rounds at most (default: 9)"),
            **DEVICE,
        },
    ),
    Benchmark(
        "softmax",
        "what sharpmax.softmax costs beside the framework's own softmax and a hand-written entropy",
        {
            "--rows": number("rows of logits (default: 4096)"),
            "--columns": number("items in a row (default: 4096)"),
            "--repeats": number("timed calls of each, interleaved (default: 9)"),
            "--frameworks": several("NAME", "of numpy, torch, jax (default: those installed)"),
        },
    ),
    Benchmark(
        "training-step",
        "how much faster the folded max-retrieval head trains than the form as the paper writes it",
        {
            "--seeds": number("heads trained side by side (default: 10)"),
            "--batch": number("sets per step and seed (default: 128)"),
            "--steps": number("steps in each turn (default: 20)"),
            "--repeats": number("timed turns of each, interleaved (default: 9)"),
        },
    ),
    Benchmark(
        "watch",
        "what watching every head of a training run costs, at every step, at every tenth, or switched off",
        {
            "--model": word("smollm2, llama-1b, gemma-2b or tiny (default: smollm2; CPU: tiny)", "SHAPE"),
            "--tokens": number("tokens in the packed row (default: 16384; CPU: 512)"),
            "--repeats": number("turns of ten steps of each way (default: 7)"),
            "--seconds": number("start no further turn after so long (default: 75.0)", float, "S"),
            **DEVICE,
        },
    ),
)


def bench(
    name: str, *, json: str | Path | None = None, draw: str | Path | None = None, **options: Any
) -> dict[str, Any]:
    """Run one benchmark, print its table, and return its figures.

    `json` names a file that gets them too, with the benchmark's figure beside it as SVG and PNG. Of `attention` and
    `model` it is written after every result; until the last, it holds `"whole": false`. `draw` names such a file, to
    show and draw again without measuring.

    Raises:
        ValueError: for an unknown benchmark, an option out of range, or a file that is not of this benchmark.
        MissingExtraError: if a framework was asked for that is not installed.
        OSError: if the file cannot be written, before anything is measured; or read.
        ArithmeticError: if a result of ours is wrong; it was not timed, and the file says so.
    """
    from rich.console import Console

    module = import_module(listed(name, BENCHMARKS, "benchmark").module)
    console = Console()
    if not console.is_terminal:
        console.width = 160  # a file takes a whole row
    if draw is not None:
        if beside := [*options, *(["json"] if json is not None else [])]:
            raise ValueError(f"draw measures nothing and writes no record: leave out {', '.join(beside)}")
        figures = _read(Path(draw))
        try:
            console.print(module.show(figures))
            if figures.get("whole") is False:
                console.print("not whole: this run was stopped before its last result")
            drawn = module.draw_figure(figures, Path(draw).parent, Path(draw).stem)
        except (MissingExtraError, OSError):
            raise
        except Exception as error:  # whatever rows of another kind lead to
            raise ValueError(f"{draw} is not what bench {name} --json wrote: {error!r}") from error
        console.print(f"figure: {drawn}", markup=False)
        return figures
    if json is not None:
        atomic.require_writable(Path(json))
    figures = _measured(module, options, None if json is None else Path(json))
    console.print(module.show(figures))
    if json is not None:
        atomic.write_json(Path(json), figures)
        if hasattr(module, "draw_figure"):
            try:
                module.draw_figure(figures, Path(json).parent, Path(json).stem)
            except MissingExtraError as missing:  # what was measured is written; a figure can be drawn later
                console.print(f"no figure: {missing}; then: sharpmax bench {name} --draw {json}")
            except ValueError as nothing_to_draw:  # memory alone, or nothing that could be timed
                console.print(f"no figure: {nothing_to_draw}")
    if hasattr(module, "wrong") and (failures := module.wrong(figures)):
        raise ArithmeticError("; ".join(failures))
    return figures


def _measured(module: Any, options: dict[str, Any], json: Path | None) -> dict[str, Any]:
    """Return what `measure` does, with where it comes from; the file gets the results so far, as they come.

    Raises:
        KeyboardInterrupt: with the file's name, if it holds some of them.
    """
    if json is None:
        return _with_provenance(module.measure(**options))
    holds = ""

    def write(figures: dict[str, Any]) -> None:
        nonlocal holds
        atomic.write_json(json, _with_provenance(figures) | {"whole": False})
        holds = f"the results so far are in {json}"

    try:
        with kept(write):
            return _with_provenance(module.measure(**options))
    except KeyboardInterrupt as stopped:
        raise KeyboardInterrupt(holds) from stopped


def _with_provenance(figures: dict[str, Any]) -> dict[str, Any]:
    origin = provenance()
    own = {"versions": {**figures.get("versions", {}), **origin["versions"]}}
    return {**origin, **figures, **own}


def _read(path: Path) -> dict[str, Any]:
    figures = read_json(path, expected="what bench --json wrote")
    if not isinstance(figures, dict) or not isinstance(figures.get("results"), list):
        raise ValueError(f"{path} is not what bench --json wrote: it has no list of results")
    return dict(_printable(figures))


def _printable(value: Any) -> Any:
    """Return JSON values with printable texts: rich prints them past the command line's own check."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, dict):
        return {_printable(name): _printable(item) for name, item in value.items()}
    return value
