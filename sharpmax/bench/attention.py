"""What sharpened attention costs beside plain attention: correctness first, then medians, all in one run.

Plain attention is the fastest of PyTorch's own backends, measured beside ours; every ratio is to that. A CUDA device is
taken where there is one (bfloat16, causal, 16,384 tokens, 2,048 features), else the CPU (float32, two threads).
"""

import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from sharpmax import PAPER, Constant, detach
from sharpmax.bench import attention_jax
from sharpmax.bench.attention_inputs import draw
from sharpmax.bench.timing import interleaved_medians
from sharpmax.extras import extra

TOKENS, FEATURES = 16384, 2048
ROWS_JUDGED = 64


def measure(
    *,
    lengths: Sequence[int] = (),
    widths: Sequence[int] = (128, 64),
    repeats: int = 15,
    seed: int = 0,
    framework: str = "torch",
) -> dict[str, Any]:
    """Check, then time, every case; returns milliseconds, the ratio to plain attention, and what ran.

    Args:
        lengths: tokens in a sequence; none named: 2048, 4096, 16384 on a GPU, 4096 on a CPU.
        widths: of a head; the features stay the same, so a narrower head means more of them.
        repeats: timed calls of each contestant, in turns.
        seed: of the inputs.
        framework: torch, or jax (`attention_jax`).

    Raises:
        ValueError: for a length, width or number of repeats below 1, or another framework.
        ArithmeticError: if a result errs by more than twice what half-precision products err; it is not timed.
    """
    if min([1, *lengths, *widths, repeats]) < 1:
        raise ValueError(f"expected sizes and repeats of at least 1, got {lengths}, {widths}, {repeats}")
    if framework == "jax":
        return attention_jax.measure(lengths=lengths, widths=widths, repeats=repeats, seed=seed)
    if framework != "torch":
        raise ValueError(f"framework must be torch or jax, got {framework!r}")
    with extra("torch"):
        import torch
    on_gpu = torch.cuda.is_available()
    results: list[dict[str, Any]] = []
    for length in lengths or ((2048, 4096, 16384) if on_gpu else (4096,)):
        for width in widths:
            results += (_on_gpu if on_gpu else _on_cpu)(length, width, repeats, seed)
    if on_gpu:
        results += [*_decode(repeats, seed), *_long_memory()]
    else:
        results += [_cpu_memory(length) for length in (1024, 2048, 4096, 8192, 16384)]
    device = torch.cuda.get_device_name() if on_gpu else f"{platform.machine()} cpu, 2 threads"
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    if on_gpu:
        import triton

        versions["triton"] = triton.__version__
    return {"device": device, "versions": versions, "repeats": repeats, "seed": seed, "results": results}


def show(figures: dict[str, Any]) -> Any:
    """Lay the figures out as a table for the terminal."""
    if figures.get("framework") == "jax":
        return attention_jax.show(figures)
    from rich.table import Table

    table = Table("case", "length", "width", "implementation", "ms", "ratio to plain", "error", title=figures["device"])
    for r in figures["results"]:
        ratio = f"{r['ratio']:.2f}" if "ratio" in r else ""
        time = f"{r['milliseconds']:.3f}" if "milliseconds" in r else f"{r['megabytes']:.0f} MB"
        error = f"{r['error']:.1e}" if "error" in r else ""
        table.add_row(r["case"], str(r["length"]), str(r["width"]), r["implementation"], time, ratio, error)
    return table


def _entry(case: str, length: int, width: int, implementation: str, **more: Any) -> dict[str, Any]:
    return {"case": case, "length": length, "width": width, "implementation": implementation, **more}


def _on_gpu(length: int, width: int, repeats: int, seed: int) -> list[dict[str, Any]]:
    import torch

    from sharpmax.torch import attention, row_stats, which_implementation

    def inputs(kind: str) -> Any:
        sizes = {"length": length, "width": width, "tokens": TOKENS, "features": FEATURES}
        return draw(kind, **sizes, dtype=torch.bfloat16, device="cuda", seed=seed)

    def ours(tensors: Any, policy: Any = PAPER) -> Callable[[], Any]:
        return lambda: attention(*tensors, policy=policy, is_causal=True)

    sharpened, peaked = inputs("sharpened"), inputs("peaked")
    forward = {f"plain, {name}": call for name, call in _plain(sharpened, is_causal=True).items()}
    cases = {"forward, rows sharpened": sharpened, "forward, no row sharpened": peaked}
    if length >= 16384:
        cases["forward, retrieval"] = inputs("retrieval")
    errors = {case: _judged(tensors) for case, tensors in cases.items()}
    forward |= {case: ours(tensors) for case, tensors in cases.items()}
    forward["row_stats"] = lambda: row_stats(*sharpened[:2], is_causal=True)
    with torch.no_grad():
        times = _cuda_medians(forward, repeats)
        named = which_implementation(*sharpened, is_causal=True).implementation
    learning = [x.requires_grad_() for x in sharpened]
    gradient = torch.randn_like(learning[0])

    def trained(call: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(call(), learning, gradient)

    both = {f"plain, {name}": trained(call) for name, call in _plain(learning, is_causal=True).items()}
    both["forward + backward"] = trained(ours(learning))
    both["forward + backward, detached"] = trained(ours(learning, detach(PAPER)))
    trained_times = _cuda_medians(both, repeats)
    trained_by = which_implementation(*learning, is_causal=True).implementation
    results = []
    for measured, by, suffix in ((times, named, ""), (trained_times, trained_by, ", forward + backward")):
        best = min(t for name, t in measured.items() if name.startswith("plain"))
        for name, t in measured.items():
            plain = name.startswith("plain")
            more = {"error": errors[name]} if name in errors else {}
            case, implementation = ("plain" + suffix, name.removeprefix("plain, ")) if plain else (name, by)
            results.append(_entry(case, length, width, implementation, milliseconds=t, ratio=t / best, **more))
    return results


def _plain(tensors: Any, **options: Any) -> dict[str, Callable[[], Any]]:
    """Return PyTorch's own attention by each backend that serves these inputs."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def by(backend: Any) -> Callable[[], Any]:
        def call() -> Any:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(*tensors, **options)

        return call

    calls = {}
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        try:
            by(backend)()
        except RuntimeError:  # this build or device has no such kernel
            continue
        calls[backend.name.lower()] = by(backend)
    return calls


def _judged(tensors: Any) -> float:
    """Return the error of the last rows against float64, if it is at most twice that of half-precision products."""
    import torch

    from sharpmax.core.softmax import softmax
    from sharpmax.torch import attention

    with torch.no_grad():
        got = attention(*tensors, is_causal=True)[:1, :2, -ROWS_JUDGED:].double()
        q, k, v = (x[:1, :2] for x in tensors)
        last = q[:, :, -ROWS_JUDGED:]
        exact = attention(last.double(), k.double(), v.double(), is_causal=True, implementation="eager")
        rows, keys = last.shape[2], k.shape[2]
        visible = torch.arange(keys, device=q.device) <= torch.arange(keys - rows, keys, device=q.device)[:, None]
        logits = (last @ k.transpose(-2, -1)).float() * q.shape[3] ** -0.5
        low = softmax(logits, where=visible.expand(logits.shape)).to(v.dtype) @ v
    error, spent = (float((x - exact).norm() / exact.norm()) for x in (got, low.double()))
    if not error <= 2 * spent + 2.0**-8:
        raise ArithmeticError(f"expected an error of at most twice {spent:.1e}, got {error:.1e}; nothing was timed")
    return error


def _decode(repeats: int, seed: int) -> list[dict[str, Any]]:
    """32 sequences, 32 query and 8 key heads, one query against 32,768 keys."""
    import torch

    from sharpmax.torch import attention, which_implementation

    length, width = 32768, 128
    generator = torch.Generator("cuda").manual_seed(seed)
    shapes = ((32, 32, 1, width), (32, 8, length, width), (32, 8, length, width))
    q, k, v = (torch.randn(s, generator=generator, device="cuda", dtype=torch.bfloat16) for s in shapes)
    with torch.no_grad():
        calls = _plain((q, k, v), enable_gqa=True)
        by = which_implementation(q, k, v).implementation
        calls["ours"] = lambda: attention(q, k, v)
        graph = torch.cuda.CUDAGraph()
        calls["ours"]()
        with torch.cuda.graph(graph):
            attention(q, k, v)
        calls["graph"] = graph.replay
        times = _cuda_medians(calls, repeats)
    best = min(t for name, t in times.items() if name not in ("ours", "graph"))
    names = {"ours": ("decode", by), "graph": ("decode, CUDA graph", by)}
    return [
        _entry(*(names[n][:1] if n in names else ("plain, decode",)), length, width,
               names[n][1] if n in names else n, milliseconds=t, ratio=t / best)
        for n, t in times.items()
    ]  # fmt: skip


def _long_memory() -> list[dict[str, Any]]:
    """Peak memory of one forward over 131,072 tokens, beyond its inputs, for plain attention and ours."""
    import torch

    from sharpmax.torch import attention, which_implementation

    length, width = 131072, 128
    q, k, v = (torch.randn(1, FEATURES // width, length, width, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    found = {}
    with torch.no_grad():
        plain = next(iter(_plain((q, k, v), is_causal=True).values()))
        for name, call in (("plain", plain), ("ours", lambda: attention(q, k, v, is_causal=True))):
            torch.cuda.reset_peak_memory_stats()
            call()
            found[name] = torch.cuda.max_memory_allocated() / 1e6
        by = which_implementation(q, k, v, is_causal=True).implementation
    return [
        _entry(
            "peak memory", length, width, {"plain": "plain", "ours": by}[name], megabytes=m, ratio=m / found["plain"]
        )
        for name, m in found.items()
    ]


def _cuda_medians(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Time each call by device events, in turns, after two untimed calls each; returns median milliseconds."""
    import torch

    for call in calls.values():
        call()
        call()
    events: dict[str, list[Any]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            call()
            stop.record()
            events[name].append((start, stop))
    torch.cuda.synchronize()
    return {name: median(start.elapsed_time(stop) for start, stop in pairs) for name, pairs in events.items()}


def _on_cpu(length: int, width: int, repeats: int, seed: int) -> list[dict[str, Any]]:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from sharpmax.torch import attention

    threads = torch.get_num_threads()
    q, k, v = draw("sharpened", length=length, width=width, tokens=length, features=512, dtype=torch.float32,
                   device="cpu", seed=seed)  # fmt: skip
    try:
        torch.set_num_threads(2)
        with torch.no_grad():
            exact = attention(q, k, v, policy=Constant(1.0), is_causal=True, implementation="chunked")
            error = float((exact - scaled_dot_product_attention(q, k, v, is_causal=True)).abs().max())
            if not error < 1e-4:
                raise ArithmeticError(f"expected Constant(1) to equal plain attention, got {error:.1e} off")
            calls: dict[str, Callable[[], Any]] = {
                "plain": lambda: scaled_dot_product_attention(q, k, v, is_causal=True)
            }
            for name in ("stock", "chunked"):
                calls[name] = lambda name=name: attention(q, k, v, is_causal=True, implementation=name)  # type: ignore[misc]
            times = interleaved_medians(calls, repeats=repeats)
    finally:
        torch.set_num_threads(threads)
    return [
        _entry("forward, rows sharpened", length, width, name, milliseconds=1e3 * t, ratio=t / times["plain"])
        for name, t in times.items()
    ]


def _cpu_memory(length: int) -> dict[str, Any]:
    """Peak memory of `chunked` beyond what was there before the call, in a process of its own."""
    code = f"""
import resource, torch
from sharpmax.torch import attention
q, k, v = (torch.randn(1, 2, {length}, 64) for _ in range(3))
attention(q[:, :, :64], k[:, :, :64], v[:, :, :64], implementation="chunked")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
attention(q, k, v, is_causal=True, implementation="chunked")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return _entry("peak memory beyond the inputs", length, 64, "chunked", megabytes=float(done.stdout))
