"""How fast a whole model runs with a policy in every head, beside the same model with PyTorch's own attention.

A kernel's ratio hides the host; here nothing is hidden. Each figure is the wall time of the call a user makes, from
the first line of Python to the synchronised result. Plain and sharpened take turns on the same inputs. What a policy
settles once when it is switched on is in its first call, which is timed apart. Where a model
is compiled, each takes its turns after its own compilation, because compiled code is dropped between them.
"""

import gc
import resource
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import inf
from statistics import median
from time import perf_counter
from typing import Any

from rich.table import Table

from sharpmax.bench.model.cases import CASES, Case
from sharpmax.bench.model.counting import asked_of_device
from sharpmax.bench.random_policies import log_linear_per_head
from sharpmax.bench.so_far import keep
from sharpmax.cards import card_file
from sharpmax.core.cards import load_policy
from sharpmax.core.policies import PAPER, Constant, EntropyTarget, PerLayer, Policy
from sharpmax.extras import extra
from sharpmax.flags import require_among, require_at_least
from sharpmax.hf.models.load import load
from sharpmax.hf.models.shapes import SHAPES, random_model
from sharpmax.hf.sharpen.layers import attention_layers, layer_count
from sharpmax.hf.sharpen.switch import sharpen
from sharpmax.runs.progress import say
from sharpmax.spelling import did_you_mean
from sharpmax.torch.device import device_or_best, must_run_on
from sharpmax.torch.torch_internals import graphs_compiled

with extra("hf"):
    import numpy as np
    import torch

PLAIN = "plain"
POLICIES = ("constant", "paper", "card", "entropy-target")
COMPILED_POLICIES = POLICIES[:3]
"""Where compiling takes most of the time; others if they are named."""
CPU_LENGTHS, CPU_COMPILED_LENGTHS = (128, 512), (128,)
"""Tokens of a prompt; those of a GPU are the case's own."""
LONGEST = {"padded prefill": 4096, "padded generate": 1024, "training step": 2048, "generate": 16384}
"""Tokens of a prompt at most, by case: eight sequences take eight times the memory."""
NEW_TOKENS = 32
COUNTED = 3  # new tokens of the longer of two calls, the other with one, whose difference is what a step asks
SECONDS_EACH, FEWEST = 1.5, 3  # a contestant takes turns for about so long, and at least so many

Contestants = Mapping[str, Callable[[Any], AbstractContextManager[Any]]]
"""What switches each contestant on in a model."""


def measure(
    *,
    models: Sequence[str] = (),
    policies: Sequence[str] = (),
    only: Sequence[str] = (),
    lengths: Sequence[int] = (),
    new_tokens: int = NEW_TOKENS,
    repeats: int = 5,
    card: str | None = None,
    seconds: float | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Time every model, case and length; returns the figures, a result for each.

    The options are those of `sharpmax bench model --help`. A length that is longer than a case allows is cut to what
    it allows. After `seconds` no further case starts; `left_out` names those.

    Raises:
        ValueError: a name or number that is not among those there are.
    """
    device = device_or_best(device)
    must_run_on(device)
    kind = device.partition(":")[0]
    models = models or (tuple(name for name in SHAPES if name != "tiny") if kind == "cuda" else ("tiny",))
    require_among("policies", policies, POLICIES)
    require_among("cases", only, CASES)
    require_at_least(2, lengths=min(lengths, default=None), new_tokens=new_tokens)
    require_at_least(1, repeats=repeats)
    if seconds is not None and not 0 <= seconds < inf:
        raise ValueError(f"expected seconds of at least 0, got {seconds:g}")
    if card is not None and "card" not in (policies or POLICIES):
        raise ValueError(f"a card is timed as the policy card: add it to policies, or leave out card {card!r}")
    began = perf_counter()
    results: list[dict[str, Any]] = []
    left_out: list[str] = []
    options = {"new_tokens": new_tokens, "repeats": repeats, "policies": [*(policies or POLICIES)], "card": card}
    on = torch.cuda.get_device_name() if kind == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    figures = {"device": on, "versions": {"torch": torch.__version__}, **options, "results": results}
    figures["left_out"] = left_out
    to_do = [
        (case_name, length)
        for case_name in [name for name in CASES if name in (only or CASES)]
        for length in _lengths(case_name, lengths, kind)
    ]
    for name in models:
        model = _model(name, max(length for _, length in to_do) + new_tokens, device)
        contestants = _contestants(model, policies or POLICIES, card)
        for case_name, length in to_do:
            what = f"{name}, {case_name}, {length:,} tokens"
            if seconds is not None and perf_counter() - began > seconds:
                left_out.append(what)
                say(f"{what}: left out, the {seconds:g} s are over")
                continue
            case = CASES[case_name]
            wanted = [PLAIN, *(policies or (COMPILED_POLICIES if case.compiled else POLICIES))]
            some = {one: switch for one, switch in contestants.items() if one in wanted}
            found = _time(model, case, some, length, new_tokens, repeats)
            results.append({"model": name, "case": case_name, "length": length, **found})
            _say(results[-1])
            keep(figures)
        del model, contestants
        _forget()
    return figures


def _lengths(case_name: str, lengths: Sequence[int], kind: str) -> list[int]:
    """Return the tokens of a prompt of a case, at most as many as it allows."""
    case = CASES[case_name]
    on_a_cpu = CPU_COMPILED_LENGTHS if case.compiled else CPU_LENGTHS
    lengths = lengths or (case.lengths if kind == "cuda" else on_a_cpu)
    return sorted({min(length, LONGEST.get(case_name, length)) for length in lengths})


def _say(result: dict[str, Any]) -> None:
    """Print one result as soon as it is there: the whole may take long, or be stopped."""
    of = result["contestants"]
    ratios = ", ".join(f"{name} {found['ratio']:.2f}" for name, found in of.items() if name != PLAIN)
    seconds = f"plain {1e3 * of[PLAIN]['seconds']:.1f} ms"
    say(f"{result['model']}, {result['case']}, {result['length']:,} tokens: {seconds}; {ratios}")


def show(figures: dict[str, Any]) -> Any:
    """Lay the figures out as a table for the terminal."""
    named = [PLAIN, *figures["policies"]]
    title = f"{figures['device']}: milliseconds per call of plain attention, and the ratio of each policy to it"
    table = Table("model", "case", "tokens", *named, "launches per step", "compiled after warm-up", title=title)
    for result in figures["results"]:
        of = result["contestants"]
        cells = [f"{1e3 * of[PLAIN]['seconds']:.1f}"]
        cells += [f"{of[name]['ratio']:.2f}" if name in of else "-" for name in figures["policies"]]
        counts = [of[name].get("launches_per_step") for name in named if name in of]
        launches = " ".join("-" if count is None else f"{count:g}" for count in counts)
        compiled = " ".join(str(of[name]["compiled_after_warm_up"]) for name in named if name in of)
        table.add_row(result["model"], result["case"], f"{result['length']:,}", *cells, launches, compiled)
    if figures.get("left_out"):
        table.caption = f"left out, the time was over: {'; '.join(figures['left_out'])}"
    return table


def draw_figure(figures: dict[str, Any], folder: Any, name: str) -> Any:
    """Draw the ratios, a panel per case and a row per policy; returns the SVG's path."""
    from sharpmax.report.ratios import RatiosDisplay, Series

    panels: dict[str, dict[str, list[tuple[str, float]]]] = {}
    for result in figures["results"]:
        rows = panels.setdefault(result["case"], {})
        for policy in figures["policies"]:
            if policy in result["contestants"]:
                dot = (result["model"], result["contestants"][policy]["ratio"])
                rows.setdefault(policy, []).append(dot)
    named = list(dict.fromkeys(result["model"] for result in figures["results"]))
    looks = {model: Series(f"C{index}") for index, model in enumerate(named)}
    return RatiosDisplay(panels, looks, "time / plain attention", "Whole models, wall time").save(folder, name)


def _model(name: str, context: int, device: str) -> Any:
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    if meant := did_you_mean(name, SHAPES):
        raise ValueError(f"unknown model {name!r}{meant}")
    if name in SHAPES:
        return random_model(name, context=context, dtype=dtype, device=device)
    loaded = load(name, dtype=dtype, device=device)
    if not loaded.generates:
        raise ValueError(f"{name} is not a causal language model: it cannot continue a text")
    return loaded.model


def _contestants(model: Any, policies: Sequence[str], card: str | None) -> Contestants:
    made: dict[str, Policy] = {"constant": Constant(1.0), "paper": PAPER, "entropy-target": EntropyTarget(1.0)}
    if "card" in policies:
        made["card"] = load_policy(card_file(card)) if card else random_card(model)
    return {PLAIN: lambda model: nullcontext(), **{name: partial(sharpen, policy=made[name]) for name in policies}}


def random_card(model: Any) -> PerLayer:
    """Return what `calibrate` fits, three numbers per head in every layer, drawn instead of fitted."""
    rng = np.random.default_rng(0)
    heads = model.config.get_text_config().num_attention_heads
    return PerLayer(tuple(log_linear_per_head(heads, rng) for _ in range(layer_count(attention_layers(model)))))


def _time(
    model: Any, case: Case, contestants: Contestants, length: int, new_tokens: int, repeats: int
) -> dict[str, Any]:
    """Return seconds per call and ratio of each contestant; where it generates, also what one more token asks."""
    model.train(case.trains)
    call = case.work(model, length, new_tokens)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    first_calls: dict[str, list[float]] = {name: [] for name in contestants}
    compiled, asked, peak = dict.fromkeys(contestants, 0), {}, {}
    # Compiled code is kept per contestant only if no other one runs between.
    turns, calls = (1, repeats) if case.compiled else (repeats, 1)
    turn = 0
    while turn < turns:
        for name, switch in contestants.items():
            if case.compiled:
                _forget()
            with switch(model):
                # What is not compiled needs a short first call.
                first = case.work(model, length, 2) if case.generates and not case.compiled else call
                if turn > 0:
                    first_calls[name].append(_wall_seconds(first))
                else:  # the call whose memory is measured is the second warm-up
                    warming = _wall_seconds(first)
                    peak[name] = _peak_gigabytes(call)
                    asked[name] = _asked_per_step(model, case, length, new_tokens)
                    say(f"  {name}: first call {warming:.1f} s")
                before = graphs_compiled()
                for _ in range(calls):
                    seconds[name].append(_wall_seconds(call))
                compiled[name] += graphs_compiled() - before
        if turn == 0 and not case.compiled:
            slowest = max(times[0] for times in seconds.values())
            turns = min(repeats, max(FEWEST, int(SECONDS_EACH / slowest)))
        turn += 1
    model.zero_grad(set_to_none=True)
    model.eval()
    plain = median(seconds[PLAIN])
    found: dict[str, Any] = {}
    for name, times in seconds.items():
        found[name] = {
            "seconds": median(times),
            "fastest": min(times),
            "slowest": max(times),
            "ratio": median(times) / plain,
            "tokens_per_second": case.tokens(length, new_tokens) / median(times),
            "peak_gigabytes": peak[name],
            "compiled_after_warm_up": compiled[name],
        }
        if first_calls[name]:
            found[name]["seconds_of_first_call"] = median(first_calls[name])
        if asked[name] is not None:
            found[name] |= asked[name]
    return {"contestants": found}


def _asked_per_step(model: Any, case: Case, length: int, new_tokens: int) -> dict[str, float] | None:
    """Return kernels and launches of a call; of generation, of one more token, by the difference of two calls."""
    # A static cache of another size would compile again.
    longer = 1 if not case.generates else new_tokens if case.compiled else COUNTED
    found = asked_of_device(case.work(model, length, longer))
    if found is None:
        return None
    if case.generates:
        shorter = asked_of_device(case.work(model, length, 1))
        found = found if shorter is None else found - shorter
    steps = max(1, longer - 1)
    return {"kernels_per_step": found.kernels / steps, "launches_per_step": found.launches / steps}


def _wall_seconds(call: Callable[[], Any]) -> float:
    _synchronise()
    start = perf_counter()
    call()
    _synchronise()
    return perf_counter() - start


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _peak_gigabytes(call: Callable[[], Any]) -> float:
    """Return the most memory a call holds: of the device, or of the whole process where there is none."""
    if not torch.cuda.is_available():
        call()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 1e9


def _forget() -> None:
    """Drop compiled code and free memory, so that no contestant pays for or gains from another."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
