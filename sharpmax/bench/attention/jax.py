"""What sharpened attention costs in JAX: every implementation that can serve, beside plain attention, in one run.

Plain attention is `jax.nn.dot_product_attention`, by cuDNN on a GPU; ratios are to that, forward to forward and
gradients to gradients, row statistics to forward. The shapes and the spread of the logits are those of the PyTorch
table. Output, entropy and the query's gradient are compared with float64 first, on the last rows of one head; what errs
by more than twice what attention as people write it errs, and a rounding, is not timed, and its row says so.

Memory is what the compiler sets aside for a call beside its inputs and results; the last rows have it for one sequence
of growing length.
"""

import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import numpy as np

from sharpmax import PAPER, Constant
from sharpmax.bench.attention.inputs import SPREAD
from sharpmax.bench.attention.timing import attempt
from sharpmax.bench.timing import interleaved_medians
from sharpmax.extras import extra

PARTS = ("ours", "memory")
TOKENS, FEATURES = 16384, 2048
LENGTHS, LENGTHS_OF_MEMORY = (2048, 4096, 8192, 16384), (16384, 32768, 65536, 131072)
CPU_FEATURES, CPU_LENGTHS, CPU_LENGTHS_OF_MEMORY = 128, (1024,), (1024, 4096)
ROUND, CALLS = 0.02, 20  # seconds and most calls of a timed round, waited for once: a call's own cost hides behind them
DENSE = 4096  # tokens up to which the dense implementation's matrix is worth holding
ROWS = 64  # that are judged
FORWARD, TRAINED, STATISTICS = "forward, rows sharpened", "forward + backward", "row_stats"
MEMORY = "memory of one sequence"

Shape = tuple[int, int, int, int]
Calls = dict[tuple[str, str], Callable[..., Any]]


def measure(
    *,
    lengths: Sequence[int] = (),
    widths: Sequence[int] = (128, 64),
    repeats: int = 15,
    only: Sequence[str] = (),
    seed: int = 0,
) -> dict[str, Any]:
    """Check, then time, every case; returns milliseconds, the ratio to plain attention, memory, and what refused.

    Args:
        lengths: tokens in a sequence; none named: 2048, 4096, 8192, 16384 on a GPU, 1024 on a CPU.
        widths: of a head; the features stay the same, so a narrower head means more of them. Memory takes the first.
        repeats: timed rounds of each contestant, in turns.
        only: which of `PARTS`; none named: both.
        seed: of the inputs.

    Raises:
        ValueError: for a length, width or number of repeats below 1, or an unknown part.
    """
    if min([1, *lengths, *widths, repeats]) < 1:
        raise ValueError(f"expected sizes and repeats of at least 1, got {lengths}, {widths}, {repeats}")
    if unknown := sorted(set(only) - set(PARTS)):
        raise ValueError(f"of jax, only may name {' and '.join(PARTS)}, got {', '.join(unknown)}")
    with extra("jax"):
        import jax
    on_gpu = jax.default_backend() == "gpu"
    tokens, features = (TOKENS, FEATURES) if on_gpu else (1, CPU_FEATURES)  # a CPU measures one sequence
    refused: dict[str, str] = {}
    results: list[dict[str, Any]] = []
    if "ours" in (only or PARTS):
        for length in lengths or (LENGTHS if on_gpu else CPU_LENGTHS):
            for width in widths:
                shape = (max(1, tokens // length), length, max(1, features // width), width)
                results += _timed(shape, repeats, seed, refused)
    if "memory" in (only or PARTS):
        for length in LENGTHS_OF_MEMORY if on_gpu else CPU_LENGTHS_OF_MEMORY:
            results += _memory((1, length, max(1, features // widths[0]), widths[0]))
    versions = {"jax": jax.__version__, "python": platform.python_version()}
    return {
        "framework": "jax",
        "device": jax.devices()[0].device_kind,
        "versions": versions,
        "repeats": repeats,
        "seed": seed,
        "refused": refused,
        "results": results,
    }


def show(figures: dict[str, Any]) -> Any:
    """Lay the figures out as a table for the terminal."""
    from rich.table import Table

    columns = ("case", "length", "width", "implementation", "ms", "ratio to plain", "error", "temporary MB")
    table = Table(*columns, title=f"jax {figures['versions']['jax']}, {figures['device']}")
    formats = (("milliseconds", ".3f"), ("ratio", ".2f"), ("error", ".1e"), ("megabytes", ".1f"))
    for r in figures["results"]:
        first = (r["case"], str(r["length"]), str(r["width"]), r["implementation"])
        if "failed" in r:
            table.add_row(*first, f"[dim]{r['failed']}[/]")
            continue
        table.add_row(*first, *(f"{r[name]:{form}}" if name in r else "" for name, form in formats))
    return table


def _drawn(shape: Shape, seed: int) -> tuple[Any, ...]:
    """Draw query, key, value and the output's gradient, (B, T, N, H)."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def drawn(key: Any) -> Any:
        q, k, v, d = (jax.random.normal(part, shape) for part in jax.random.split(key, 4))
        return tuple(x.astype(jnp.bfloat16) for x in (q * SPREAD.get(shape[1], 2.4), k, v, d))

    inputs: tuple[Any, ...] = drawn(jax.random.key(seed))
    return inputs


def _compiled(shape: Shape, calls: Calls) -> dict[tuple[str, str], dict[str, Any]]:
    """Compile calls side by side; each gives its `program`, or why it `failed`."""
    import jax
    import jax.numpy as jnp

    def compiled(item: tuple[tuple[str, str], Callable[..., Any]]) -> dict[str, Any]:
        (case, _), call = item
        given = [jax.ShapeDtypeStruct(shape, jnp.bfloat16)] * (4 if TRAINED in case else 3)
        return attempt(lambda: {"program": jax.jit(call).lower(*given).compile()})

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(calls, pool.map(compiled, calls.items()), strict=True))


def _timed(shape: Shape, repeats: int, seed: int, refused: dict[str, str]) -> list[dict[str, Any]]:
    """Draw, compile, judge and time one shape; returns a row for each contestant."""
    inputs = _drawn(shape, seed)
    return _in_turns(shape, _compiled(shape, _contestants(inputs, refused)), inputs, repeats)


def _in_turns(
    shape: Shape, programs: dict[tuple[str, str], dict[str, Any]], inputs: tuple[Any, ...], repeats: int
) -> list[dict[str, Any]]:
    """Judge every program, time those that pass, in turns, and return a row for each."""
    import jax

    exact = _Exact(inputs)
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    rounds: dict[str, Callable[[], Any]] = {}
    calls: dict[str, int] = {}
    for (case, name), found in programs.items():
        given = inputs if case == TRAINED else inputs[:3]
        row = rows[case, name] = {"case": case, "length": shape[1], "width": shape[3], "implementation": name}
        if "failed" in found:
            row |= found
            continue
        program = found["program"]

        def judged(case: str = case, name: str = name, program: Any = program, given: Any = given) -> dict[str, Any]:
            result = jax.block_until_ready(program(*given))
            return {"error": exact.error(case, name, result), "megabytes": _megabytes(program)}

        row |= attempt(judged)
        if "failed" in row:
            continue
        start = perf_counter()
        jax.block_until_ready(program(*given))
        key = f"{case}|{name}"
        calls[key] = min(CALLS, max(1, round(ROUND / (perf_counter() - start))))

        def run(program: Any = program, given: Any = given, times: int = calls[key]) -> Any:
            for _ in range(times):
                result = program(*given)
            return jax.block_until_ready(result)  # the device runs them in order

        rounds[key] = run
    seconds = {key: s / calls[key] for key, s in interleaved_medians(rounds, repeats=repeats).items()}
    for (case, name), row in rows.items():
        if f"{case}|{name}" in seconds:
            row["milliseconds"] = 1e3 * seconds[f"{case}|{name}"]
            plain = seconds.get(f"{FORWARD if case == STATISTICS else case}|plain")
            row |= {} if plain is None else {"ratio": seconds[f"{case}|{name}"] / plain}
    return list(rows.values())


def _memory(shape: Shape) -> list[dict[str, Any]]:
    """Return what the compiler sets aside for `attention` itself, where no implementation is named."""
    import jax.numpy as jnp

    from sharpmax.jax import attention, which_implementation

    def forward(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v, policy=PAPER, is_causal=True)

    x = jnp.zeros(shape, jnp.bfloat16)
    name = which_implementation(x, x, x, is_causal=True).implementation
    calls = {(f"{MEMORY}, forward", name): forward, (f"{MEMORY}, {TRAINED}", name): _with_gradients(forward)}
    return [
        {"case": case, "length": shape[1], "width": shape[3], "implementation": name}
        | (found if "failed" in found else {"megabytes": _megabytes(found["program"])})
        for (case, _), found in _compiled(shape, calls).items()
    ]


def _megabytes(program: Any) -> float:
    megabytes: float = program.memory_analysis().temp_size_in_bytes / 1e6
    return megabytes


def _with_gradients(forward: Callable[..., Any]) -> Callable[..., Any]:
    import jax

    def run(q: Any, k: Any, v: Any, d: Any) -> Any:
        output, pull = jax.vjp(forward, q, k, v)
        return output, pull(d)

    return run


def _contestants(inputs: tuple[Any, ...], refused: dict[str, str]) -> Calls:
    """Return what is timed, by case and implementation, and note why the others are not."""
    import jax

    from sharpmax.jax import IMPLEMENTATIONS, attention, row_stats, which_implementation

    on_gpu = jax.default_backend() == "gpu"

    def plain(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn" if on_gpu else "xla")

    timed: Calls = {(FORWARD, "plain"): plain, (TRAINED, "plain"): _with_gradients(plain)}
    for name in IMPLEMENTATIONS:
        if name == "xla" and inputs[0].shape[1] > DENSE:
            refused[name] = f"beyond {DENSE} tokens the dense implementation is not worth its memory"
            continue
        if name in ("chunked", "xla") and on_gpu:
            refused[name] = "timed where there is no GPU; on one, it serves what the kernels refuse"
            continue
        try:
            which_implementation(*inputs[:3], is_causal=True, implementation=name)
        except NotImplementedError as reason:
            refused[name] = str(reason)
            continue

        def forward(q: Any, k: Any, v: Any, name: str = name) -> Any:
            return attention(q, k, v, policy=PAPER, is_causal=True, implementation=name)

        def statistics(q: Any, k: Any, v: Any, name: str = name) -> Any:
            return row_stats(q, k, is_causal=True, implementation=name)

        timed |= {(FORWARD, name): forward, (TRAINED, name): _with_gradients(forward)}
        if not (name == "pallas" and (STATISTICS, "hybrid") in timed):  # whose statistics are the same
            timed[STATISTICS, name] = statistics
    return timed


class _Exact:
    """The last rows of the first head in float64, exact and as people write it, once a policy."""

    def __init__(self, inputs: tuple[Any, ...]) -> None:
        last, whole = ((0, slice(-ROWS, None), 0), (0, slice(None), 0))
        self.given = [np.asarray(x[last if i in (0, 3) else whole], np.float64) for i, x in enumerate(inputs)]
        self.found: dict[bool, tuple[dict[str, Any], dict[str, Any]]] = {}

    def error(self, case: str, name: str, result: Any) -> float:
        """Return the error in norm: of the output, the entropy, or the gradient of the query.

        Raises:
            ArithmeticError: if it is more than twice what attention as people write it errs, and a rounding.
        """
        import jax.numpy as jnp

        if (plain := name == "plain") not in self.found:
            self.found[plain] = self._both(Constant(1.0) if plain else PAPER)
        which = {FORWARD: "output", TRAINED: "gradient", STATISTICS: "entropy"}[case]
        exact, low = (found[which] for found in self.found[plain])
        found = result.entropy[0, 0] if case == STATISTICS else (result[1][0] if case == TRAINED else result)[0, :, 0]
        found = np.asarray(found[-ROWS:].astype(jnp.float32), np.float64)
        error, spent = (float(np.linalg.norm(x - exact) / np.linalg.norm(exact)) for x in (found, low))
        allowed = 2 * spent + 2.0**-8
        if not error <= allowed:
            raise ArithmeticError(f"errs by {error:.1e}, at most {allowed:.1e} is allowed; not timed")
        return error

    def _both(self, policy: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        q, k, v, d = self.given
        return _dense(q, k, v, d, policy, lambda x: x), _dense(q, k, v, d, policy, _in_bfloat16)


def _in_bfloat16(x: Any) -> Any:
    import jax.numpy as jnp

    return x.astype(jnp.bfloat16).astype(np.float64)


def _dense(q: Any, k: Any, v: Any, d: Any, policy: Any, rounded: Callable[[Any], Any]) -> dict[str, Any]:
    """Compute the rows densely in float64, the products of queries and keys and the weights rounded as told.

    The gradient is that of DESIGN's algebra, beta'(H) from a difference: de = beta·dS - dbeta·beta'(H)·p(log p + H).
    """
    from sharpmax.core.policies.base import choose
    from sharpmax.core.stats import RowStats

    scale = q.shape[1] ** -0.5
    behind = np.arange(len(q))[:, None] + len(k) - len(q) - np.arange(len(k))
    e = np.where(behind >= 0, rounded(q @ k.T) * scale, -np.inf)
    m = e.max(1, keepdims=True)
    log_p = e - m - np.log(np.exp(e - m).sum(1, keepdims=True))
    p = np.exp(log_p)
    surprise = np.where(p > 0, log_p, 0.0)
    entropy = -(p * surprise).sum(1)

    def beta_at(entropy: Any) -> Any:
        stats = RowStats(entropy=entropy, logsumexp=m[:, 0], maximum=m[:, 0], count=(behind >= 0).sum(1) * 1.0)
        return choose(policy, stats)[:, None]

    beta = beta_at(entropy)
    w = np.exp(beta * (e - m))
    w = rounded(w / w.sum(1, keepdims=True))
    g = d @ v.T
    d_scaled = w * (g - (w * g).sum(1, keepdims=True))
    d_beta = (np.where(w > 0, e, 0.0) * d_scaled).sum(1, keepdims=True)
    slope = (beta_at(entropy + 1e-6) - beta_at(entropy - 1e-6)) / 2e-6
    d_e = beta * d_scaled - d_beta * slope * p * (surprise + entropy[:, None])
    return {"output": w @ v, "entropy": entropy, "gradient": scale * d_e @ k}
