"""What sharpened attention costs beside plain attention and others': correctness first, then medians, all in one run.

Plain attention is the fastest of PyTorch's own kernels, timed in turns with the contestant; every ratio is to that. A
CUDA device is taken where there is one (bfloat16, causal, 16,384 tokens, 2,048 features), else the CPU (float32, two
threads). A contestant that is not installed, fails, or errs is not timed, and its row says why.
"""

import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharpmax.bench.attention import jax
from sharpmax.bench.attention.contestants import OTHERS, Contestant, Setting, named, ours, ours_detached, plain
from sharpmax.bench.attention.inputs import draw
from sharpmax.bench.attention.judging import error_of
from sharpmax.bench.attention.masks import padded, settings
from sharpmax.bench.attention.profile import profiled
from sharpmax.bench.attention.timing import attempt, timed
from sharpmax.extras import extra

PARTS = ("ours", "float16", "float32", "masks", *OTHERS, "decode", "memory", "profile")
ON_A_GPU = frozenset({"float16", "float32", "masks", "decode"})
"""Parts that measure nothing on a CPU."""
TOKENS, FEATURES = 16384, 2048
CPU_FEATURES = 512
FLOAT16_LENGTH = FLOAT32_LENGTH = MASKED_LENGTH = 4096
COLUMNS = {
    "milliseconds": ".3f",
    "ratio": ".2f",
    "error": ".1e",
    "megabytes": ".0f",
    "ratio_of_memory": ".3f",
    "megabytes_with_inputs": ".0f",
    "ratio_with_inputs": ".3f",
}
"""What a row may hold, and how it is shown."""
CPU_LENGTHS_OF_MEMORY = (1024, 2048, 4096, 8192, 16384)


def measure(
    *,
    lengths: Sequence[int] = (),
    widths: Sequence[int] = (128, 64),
    repeats: int = 15,
    only: Sequence[str] = (),
    threads: int = 2,
    seed: int = 0,
    framework: str = "torch",
) -> dict[str, Any]:
    """Check, then time, every case; returns milliseconds, the ratio to plain attention, memory, and what failed.

    Args:
        lengths: tokens in a sequence; none named: 2048, 4096, 8192, 16384 on a GPU, 4096 on a CPU.
        widths: of a head; the features stay the same, so a narrower head means more of them. Others take the first.
        repeats: timed calls of each contestant, in turns; fewer of one that takes long.
        only: which of `PARTS` (of jax: ours, memory); none named: all that this machine can measure.
        threads: of PyTorch, where there is no GPU.
        seed: of the inputs.
        framework: torch, or jax (`attention_jax`).

    Raises:
        ValueError: for a size or number below 1, an unknown part, one that needs a GPU where there is none, or another
            framework.
    """
    given = {"lengths": [*lengths], "widths": [*widths], "repeats": [repeats], "threads": [threads]}
    if small := [name for name, numbers in given.items() if min([1, *numbers]) < 1]:
        raise ValueError(f"expected {small[0]} of at least 1, got {min(given[small[0]])}")
    if framework == "jax":
        return jax.measure(lengths=lengths, widths=widths, repeats=repeats, only=only, seed=seed)
    if framework != "torch":
        raise ValueError(f"framework must be torch or jax, got {framework!r}")
    if unknown := sorted(set(only) - set(PARTS)):
        raise ValueError(f"only may name {', '.join(PARTS)}, got {', '.join(unknown)}")
    with extra("torch"):
        import torch
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and (missing := sorted(set(only) & ON_A_GPU)):
        raise ValueError(f"{', '.join(missing)}: measured on a GPU alone, and this machine has none")
    threads_before = torch.get_num_threads()
    try:
        if device == "cpu":
            torch.set_num_threads(threads)
        results = _results(device, lengths, widths, repeats, frozenset(only or PARTS), seed)
    finally:
        torch.set_num_threads(threads_before)
    by = "one thread by processor time" if threads == 1 else f"{threads} threads"
    name = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} cpu, {by}"
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    if device == "cuda":
        import triton

        versions["triton"] = triton.__version__
    options = {"repeats": repeats, "seed": seed, "only": list(only)}
    return {"device": name, "versions": versions, **options, "results": results}


def show(figures: dict[str, Any]) -> Any:
    """Lay the figures out as a table for the terminal."""
    if figures.get("framework") == "jax":
        return jax.show(figures)
    from rich.table import Table

    peak = ("peak MB beyond the inputs", "ratio", "with the inputs", "ratio")
    columns = ("case", "length", "width", "implementation", "ms", "ratio to plain", "error", *peak)
    table = Table(*columns, title=figures["device"])
    for r in figures["results"]:
        first = (r["case"], str(r["length"]), str(r["width"]), r["implementation"])
        if "failed" in r:
            table.add_row(*first, f"[dim]{r['failed']}[/]")
            continue
        if "microseconds" in r:
            longest = sorted(r["microseconds"].items(), key=lambda kernel: -kernel[1])[:4]
            table.add_row(*first, "\n".join(f"{spent / 1e3:.3f} {name[:40]}" for name, spent in longest))
            continue
        table.add_row(*first, *(f"{r[name]:{form}}" if name in r else "" for name, form in COLUMNS.items()))
    return table


def draw_figure(figures: dict[str, Any], folder: Path, name: str) -> Path:
    """Draw the ratios as `folder/name.svg` and `.png`; returns the SVG's path."""
    from sharpmax.bench.attention.figure import display

    return display(figures).save(folder, name)


def wrong(figures: dict[str, Any]) -> list[str]:
    """Return what of ours was not timed because it failed or erred: a run with any has not passed."""
    return [
        f"{r['case']}, {r['length']} tokens, width {r['width']}: {r['failed']}"
        for r in figures["results"]
        if "failed" in r and not r["case"].startswith(("plain", "other"))
    ]


@dataclass(frozen=True)
class _Entry:
    """A contestant in a case, with the tensors it gets; `gradient` of the output makes it forward + backward."""

    case: str
    contestant: Contestant
    tensors: Any
    gradient: Any = None


def _results(
    device: str, lengths: Sequence[int], widths: Sequence[int], repeats: int, parts: frozenset[str], seed: int
) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    others = [OTHERS[name] for name in OTHERS if name in parts]
    for length in lengths or ((2048, 4096, 8192, 16384) if device == "cuda" else (4096,)):
        for width in widths:
            shape = _Shape(device, length, width, seed)
            if "ours" in parts:
                results += _turns(_forward(shape), shape.setting, repeats)
                results += _turns(_trained(shape), shape.setting, repeats)
            if "profile" in parts:
                results += _profiled(_forward(shape), shape.setting)
            if others and width == widths[0]:
                results += _of_others(shape, others, repeats)
    if "float16" in parts and device == "cuda":
        for width in widths:
            shape = _Shape(device, FLOAT16_LENGTH, width, seed, "float16")
            rows = _turns(_forward(shape), shape.setting, repeats) + _turns(_trained(shape), shape.setting, repeats)
            results += [row | {"case": f"{row['case']}, float16"} for row in rows]
    if "masks" in parts and device == "cuda":
        for width in widths:
            results += _masked(_Shape(device, MASKED_LENGTH, width, seed), repeats)
        results += _decode([], repeats, seed, masked=True)
    if "float32" in parts and device == "cuda":
        for width in widths:
            results += _float32(_Shape(device, FLOAT32_LENGTH, width, seed, "float32"), repeats)
    if "decode" in parts and device == "cuda":
        results += _decode(others, repeats, seed)
    if "memory" in parts:
        results += _long_memory() if device == "cuda" else [_cpu_memory(n) for n in CPU_LENGTHS_OF_MEMORY]
    return results


class _Shape:
    """One length and width: the setting and the inputs of each kind."""

    def __init__(self, device: str, length: int, width: int, seed: int, dtype: str = "") -> None:
        self.device, self.length, self.width, self.seed = device, length, width, seed
        self.dtype = dtype or ("bfloat16" if device == "cuda" else "float32")
        self.setting = Setting(length, length, is_causal=True, device=device)

    def inputs(self, kind: str) -> Any:
        import torch

        on_gpu = self.device == "cuda"
        return draw(
            kind,
            length=self.length,
            width=self.width,
            tokens=TOKENS if on_gpu else self.length,
            features=FEATURES if on_gpu else max(CPU_FEATURES, self.width),
            dtype=getattr(torch, self.dtype),
            device=self.device,
            seed=self.seed,
        )

    def learning(self) -> tuple[Any, Any]:
        import torch

        tensors = [x.requires_grad_() for x in self.inputs("sharpened")]
        generator = torch.Generator(self.device).manual_seed(self.seed)
        gradient = torch.randn(tensors[0].shape, generator=generator, device=self.device)
        return tensors, gradient.to(tensors[0].dtype)


def _forward(shape: _Shape) -> list[_Entry]:
    sharpened = shape.inputs("sharpened")
    entries = [_Entry("plain", c, sharpened) for c in plain(shape.device)]
    cases = {
        "forward, rows sharpened": sharpened,
        "forward, one row in eight sharpened": shape.inputs("peaked"),
        "forward, no row sharpened": shape.inputs("paired"),
        "forward, one stretch in ten sharpened": shape.inputs("scattered"),
        "forward, sharpened from the middle on": shape.inputs("turning"),
    }
    if shape.length >= 16384:
        cases["forward, retrieval"] = shape.inputs("retrieval")
    entries += [_Entry(case, c, tensors) for case, tensors in cases.items() for c in ours(shape.device)]
    return [*entries, _Entry("row_stats", Contestant("", "entropy", _row_stats), sharpened)]


def _row_stats(setting: Setting) -> Callable[..., Any]:
    from sharpmax.torch import row_stats

    return lambda q, k, v: row_stats(q, k, is_causal=setting.is_causal).entropy.unsqueeze(-1)


def _trained(shape: _Shape) -> list[_Entry]:
    tensors, gradient = shape.learning()
    entrants = [("plain, forward + backward", c) for c in plain(shape.device)]
    entrants += [("forward + backward", c) for c in ours(shape.device)]
    entrants += [("forward + backward, detached", c) for c in ours_detached(shape.device)]
    return [_Entry(case, c, tensors, gradient) for case, c in entrants]


def _float32(shape: _Shape, repeats: int) -> list[dict[str, Any]]:
    """Each rung that serves float32 on a GPU, and first the one that the ladder takes: whether that is the fastest."""
    forward, (learning, gradient) = shape.inputs("sharpened"), shape.learning()
    rungs = [*ours("cuda"), *named("triton", "stock", "chunked")]
    results = []
    for case, tensors, of in (("forward", forward, None), ("forward + backward", learning, gradient)):
        entries = [_Entry(f"plain, {case}, float32", plain("cuda")[-1], tensors, of)]
        entries += [_Entry(f"{case}, float32", c, tensors, of) for c in rungs]
        results += _turns(entries, shape.setting, repeats)
    return results


def _masked(shape: _Shape, repeats: int) -> list[dict[str, Any]]:
    """Time what models ask for, beside plain attention that is asked the same where it can be, and 'chunked'."""
    results = []
    tensors = shape.inputs("sharpened")
    contestants = [*ours("cuda"), *named("chunked")]
    for name, setting, inputs in settings(tensors, shape.device):
        entries = [_Entry(f"plain, {name}", c, inputs) for c in plain(shape.device)]
        entries += [_Entry(f"forward, {name}", c, inputs) for c in contestants]
        results += _turns(entries, setting, repeats)
        learning = [x.detach().clone().requires_grad_() for x in inputs]
        gradient = inputs[0].flip(2).contiguous()  # any will do
        entries = [_Entry(f"plain, forward + backward, {name}", c, learning, gradient) for c in plain(shape.device)]
        entries += [_Entry(f"forward + backward, {name}", c, learning, gradient) for c in contestants]
        results += _turns(entries, setting, repeats)
    return results


def _of_others(shape: _Shape, others: Sequence[Contestant], repeats: int) -> list[dict[str, Any]]:
    """Time what others offer, in turns with plain attention, whose rows are those of `ours`."""
    import torch

    torch._dynamo.reset()  # a shape of the last round is no shape of this one
    results = []
    for case, (tensors, gradient) in (
        ("forward", (shape.inputs("sharpened"), None)),
        ("forward + backward", shape.learning()),
    ):
        entries = [_Entry("plain", c, tensors, gradient) for c in plain(shape.device)]
        entries += [_Entry(f"other, {case}", c, tensors, gradient) for c in others]
        results += [row for row in _turns(entries, shape.setting, repeats) if row["case"] != "plain"]
    return results


def _turns(entries: Sequence[_Entry], setting: Setting, repeats: int) -> list[dict[str, Any]]:
    """Check each entry, time those that passed in turns, and return a row for each."""
    import torch

    rows: list[dict[str, Any]] = []
    calls: dict[str, Callable[[], Any]] = {}
    with torch.set_grad_enabled(any(e.gradient is not None for e in entries)):
        for i, entry in enumerate(entries):
            sizes = {"length": setting.keys, "width": entry.tensors[0].shape[3]}
            rows.append({"case": entry.case, **sizes, "implementation": entry.contestant.name})

            def enter(entry: _Entry = entry, key: str = str(i)) -> dict[str, Any]:
                calls[key] = _call(entry, setting)
                return _checked(entry, setting, calls[key]())

            rows[i] |= attempt(enter)
            if "failed" in rows[i]:
                calls.pop(str(i), None)
        for key, found in timed(calls, device=setting.device, repeats=repeats).items():
            rows[int(key)] |= found
    best = min((r["milliseconds"] for r in rows if r["case"].startswith("plain") and "milliseconds" in r), default=None)
    for row in rows:
        if best is not None and "milliseconds" in row:
            row["ratio"] = row["milliseconds"] / best
    return rows


def _profiled(entries: Sequence[_Entry], setting: Setting) -> list[dict[str, Any]]:
    """Return where the time of each forward case goes, of plain attention by the first kernel alone."""
    import torch

    rows = []
    for i, entry in enumerate(entries):
        if entry.case == "plain" and i > 0:
            continue
        sizes = {"length": setting.keys, "width": entry.tensors[0].shape[3]}

        def looked_at(entry: _Entry = entry) -> dict[str, Any]:
            return {"microseconds": profiled(_call(entry, setting), setting.device)}

        with torch.no_grad():
            found = attempt(looked_at)
        rows.append({"case": entry.case, **sizes, "implementation": entry.contestant.name or "ours", **found})
    return rows


def _call(entry: _Entry, setting: Setting) -> Callable[[], Any]:
    """Return the call to time: the output, or the gradients of query, key and value."""
    import torch

    call = entry.contestant.build(setting)
    if entry.gradient is None:
        return lambda: call(*entry.tensors)
    return lambda: torch.autograd.grad(call(*entry.tensors), entry.tensors, entry.gradient)


def _checked(entry: _Entry, setting: Setting, result: Any) -> dict[str, Any]:
    """Return the error of a first call, and which implementation the ladder took where none was named."""
    from sharpmax.torch import which_implementation

    found: dict[str, Any] = {}
    if not entry.contestant.name:
        # Statistics alone are asked for as `row_stats` asks for them.
        how = {**setting.changes, "is_causal": setting.is_causal, "return_stats": entry.contestant.kind == "entropy"}
        choice = which_implementation(*entry.tensors, **how)
        found["implementation"] = choice.implementation
    judged = result if entry.gradient is None else result[0]
    options = {"is_causal": setting.is_causal, "gradient": entry.gradient, **setting.changes_of(entry.contestant.kind)}
    return found | {"error": error_of(entry.contestant.kind, judged, entry.tensors, **options)}


def _decode(others: Sequence[Contestant], repeats: int, seed: int, *, masked: bool = False) -> list[dict[str, Any]]:
    """32 sequences, 32 query and 8 key heads, one query against 32,768 keys, some of them padding where `masked`."""
    import torch

    length, width = 32768, 128
    q = draw("sharpened", length=length, width=width, tokens=length, features=width, dtype=torch.bfloat16,
             device="cuda", seed=seed)[0][:, :, :1024].reshape(32, 32, 1, width)  # fmt: skip
    generator = torch.Generator("cuda").manual_seed(seed + 1)
    shape = (32, 8, length, width)
    k, v = (torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    changes = {"mask": padded(32, length, "cuda")} if masked else {}
    setting = Setting(1, length, is_causal=False, device="cuda", changes=changes)
    if masked:
        entrants = [("plain, decode", c) for c in plain("cuda")]
        entrants += [("decode, padding mask", c) for c in (*ours("cuda"), *named("chunked"))]
        return _turns([_Entry(case, c, (q, k, v)) for case, c in entrants], setting, repeats)
    entrants = [("plain, decode", c) for c in plain("cuda")] + [("decode", c) for c in ours("cuda")]
    entrants += [("decode, CUDA graph", Contestant("", c.kind, _graphed(c))) for c in ours("cuda")]
    entrants += [("other, decode", c) for c in others]
    return _turns([_Entry(case, c, (q, k, v)) for case, c in entrants], setting, repeats)


def _graphed(contestant: Contestant) -> Callable[[Setting], Callable[..., Any]]:
    """Build the contestant as a CUDA graph, captured at its first call, on that call's tensors."""

    def build(setting: Setting) -> Callable[..., Any]:
        import torch

        call, graph = contestant.build(setting), torch.cuda.CUDAGraph()
        captured: list[Any] = []

        def replay(*tensors: Any) -> Any:
            if not captured:
                call(*tensors)
                with torch.cuda.graph(graph):
                    captured.append(call(*tensors))
            graph.replay()
            return captured[0]

        return replay

    return build


def _long_memory() -> list[dict[str, Any]]:
    """Peak memory of one forward over 131,072 tokens, beyond what was there before and with it: plain's and ours."""
    import torch

    from sharpmax.torch import which_implementation

    length, width = 131072, 128
    tensors = draw("sharpened", length=length, width=width, tokens=length, features=FEATURES, dtype=torch.bfloat16,
                   device="cuda", seed=0)  # fmt: skip
    torch.cuda.empty_cache()
    setting = Setting(length, length, is_causal=True, device="cuda")

    def peak(contestant: Contestant) -> dict[str, Any]:
        call = contestant.build(setting)
        call(*tensors)  # a kernel's workspace, once there, is there for all
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call(*tensors)
        with_inputs = torch.cuda.max_memory_allocated()
        return {"megabytes": (with_inputs - before) / 1e6, "megabytes_with_inputs": with_inputs / 1e6}

    with torch.no_grad():
        found = {"plain": attempt(lambda: peak(plain("cuda")[0])), "ours": attempt(lambda: peak(ours("cuda")[0]))}
        by = {"plain": plain("cuda")[0].name, "ours": which_implementation(*tensors, is_causal=True).implementation}
    if all("megabytes" in f for f in found.values()):
        for f in found.values():
            f["ratio_of_memory"] = f["megabytes"] / found["plain"]["megabytes"]
            f["ratio_with_inputs"] = f["megabytes_with_inputs"] / found["plain"]["megabytes_with_inputs"]
    case = {"plain": "plain, peak memory", "ours": "peak memory"}
    return [{"case": case[n], "length": length, "width": width, "implementation": by[n], **f} for n, f in found.items()]


def _cpu_memory(length: int) -> dict[str, Any]:
    """Peak memory of `chunked` beyond what was there before the call, one head, in a process of its own."""
    import torch

    # The kernel's own high-water mark: getrusage's survives exec, so a child would begin at its parent's.
    # Of the working folder it imports nothing that this process would not: -P, and the same path.
    code = f"""
import sys
sys.path[:] = {sys.path!r}
import torch
from pathlib import Path
from sharpmax.torch import attention

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024 / 1e6

torch.set_num_threads({torch.get_num_threads()})
q, k, v = (torch.randn(1, 1, {length}, 64) for _ in range(3))
attention(q[:, :, :64], k[:, :, :64], v[:, :, :64], implementation="chunked")
before = peak()
attention(q, k, v, is_causal=True, implementation="chunked")
print(peak() - before)
"""

    def measured() -> dict[str, Any]:
        done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
        return {"megabytes": float(done.stdout)}

    sizes = {"length": length, "width": 64, "implementation": "chunked"}
    return {"case": "peak memory beyond the inputs", **sizes, **attempt(measured)}
