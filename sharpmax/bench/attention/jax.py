"""Measure attention in JAX: every implementation that can serve, beside plain attention, in one run.

Plain attention is `jax.nn.dot_product_attention`, by cuDNN on a GPU, on the same arrays: forward to forward, gradients
to gradients, row statistics to forward. The shapes and the spread of the logits are those of the PyTorch table. A wrong
result is not timed, and its row says so.

Memory is what the compiler allocates for a call beside its inputs and results; the last rows have it for one sequence
of growing length.
"""

import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any

from sharpmax import PAPER
from sharpmax.bench.attention.inputs import SPREAD
from sharpmax.bench.attention.jax_judging import FORWARD, PLAIN_BESIDE, POLICIES, STATISTICS, TRAINED, Exact
from sharpmax.bench.attention.table import say_each
from sharpmax.bench.attention.timing import RATIOS, attempt
from sharpmax.bench.so_far import keep
from sharpmax.bench.timing import interleaved_medians
from sharpmax.extras import extra
from sharpmax.flags import require_among

PARTS = ("ours", "policies", "memory")
TOKENS, FEATURES = 16384, 2048
LENGTHS_OF_POLICIES = (4096, 8192, 16384)
LENGTHS, LENGTHS_OF_MEMORY = (2048, 4096, 8192, 16384), (16384, 32768, 65536, 131072)
CPU_FEATURES, CPU_LENGTHS, CPU_LENGTHS_OF_MEMORY = 128, (1024,), (1024, 4096)
ROUND, CALLS = 0.02, 20  # seconds and most calls of a timed round, waited for once: so the host's time is hidden
DENSE = 4096  # tokens up to which the dense implementation's matrix is worth holding
MEMORY = "memory of one sequence"

Shape = tuple[int, int, int, int]
Calls = dict[tuple[str, str], Callable[..., Any]]


def measure(
    *, lengths: Sequence[int], widths: Sequence[int], repeats: int, only: Sequence[str], seed: int
) -> dict[str, Any]:
    """Check, then time, the named parts, as `sharpmax.bench.attention.measure` describes."""
    require_among("parts of jax", only, PARTS)
    with extra("jax"):
        import jax
    on_gpu = jax.default_backend() == "gpu"
    tokens, features = (TOKENS, FEATURES) if on_gpu else (1, CPU_FEATURES)  # a CPU measures one sequence
    refused: dict[str, str] = {}
    results: list[dict[str, Any]] = []
    figures = {
        "framework": "jax",
        "device": jax.devices()[0].device_kind,
        "versions": {"jax": jax.__version__, "python": platform.python_version()},
        "repeats": repeats,
        "seed": seed,
        "refused": refused,
        "results": results,
    }

    def add(rows: list[dict[str, Any]]) -> None:
        results.extend(rows)
        say_each(rows)
        keep(figures)

    for part, contestants, usual in (("ours", _contestants, LENGTHS), ("policies", _by_policy, LENGTHS_OF_POLICIES)):
        for length in lengths or (usual if on_gpu else CPU_LENGTHS):
            for width in widths if part in (only or PARTS) else ():
                shape = (max(1, tokens // length), length, max(1, features // width), width)
                inputs = _drawn(shape, seed)
                add(_in_turns(shape, _compiled(shape, contestants(inputs, refused)), inputs, repeats))
    if "memory" in (only or PARTS):
        for length in LENGTHS_OF_MEMORY if on_gpu else CPU_LENGTHS_OF_MEMORY:
            add(_memory((1, length, max(1, features // widths[0]), widths[0])))
    return figures


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


def _in_turns(
    shape: Shape, programs: dict[tuple[str, str], dict[str, Any]], inputs: tuple[Any, ...], repeats: int
) -> list[dict[str, Any]]:
    """Judge every program, time those that pass, in turns, and return a row for each."""
    import jax

    exact = Exact(inputs)
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    timed: dict[str, Callable[[], Any]] = {}
    calls: dict[str, int] = {}
    for (case, name), found in programs.items():
        row = rows[case, name] = {"case": case, "length": shape[1], "width": shape[3], "implementation": name}
        if "failed" in found:
            row |= found
            continue
        program, given = found["program"], inputs if case == TRAINED else inputs[:3]

        def run(times: int = 1, program: Any = program, given: Any = given) -> Any:
            for _ in range(times):
                result = program(*given)
            return jax.block_until_ready(result)  # the device runs them in order

        def judged(case: str = case, name: str = name, run: Any = run, program: Any = program) -> dict[str, Any]:
            return {"error": exact.error(case, name, run()), "megabytes": _megabytes(program)}

        row |= attempt(judged)
        if "failed" in row:
            continue
        start = perf_counter()
        run()
        key = f"{case}|{name}"
        calls[key] = min(CALLS, max(1, round(ROUND / (perf_counter() - start))))
        timed |= {key: partial(run, calls[key]), f"{key}|wall": run}
    seconds = interleaved_medians(timed, repeats=repeats)
    for key, times in calls.items():
        case, name = key.split("|")
        found = {"milliseconds": seconds[key] / times, "wall_milliseconds": seconds[f"{key}|wall"]}
        rows[case, name] |= {which: 1e3 * time for which, time in found.items()}
    for (case, _), row in rows.items():
        beside = FORWARD if case == STATISTICS else PLAIN_BESIDE if case in POLICIES else case
        plain = rows[beside, "plain"]
        row |= {ratio: row[time] / plain[time] for ratio, time in RATIOS.items() if time in row and time in plain}
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


def _plain(q: Any, k: Any, v: Any) -> Any:
    import jax

    on_gpu = jax.default_backend() == "gpu"
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn" if on_gpu else "xla")


def _by_policy(inputs: tuple[Any, ...], refused: dict[str, str]) -> Calls:
    """Return other policies than `PAPER`, each by the implementation that dispatch takes, and plain attention."""
    from sharpmax.jax import attention, which_implementation

    timed: Calls = {(PLAIN_BESIDE, "plain"): _plain}
    for case, policy_of in POLICIES.items():
        policy = policy_of(inputs[0].shape[2])
        name = which_implementation(*inputs[:3], policy=policy, is_causal=True).implementation
        timed[case, name] = partial(attention, policy=policy, is_causal=True)
    return timed


def _contestants(inputs: tuple[Any, ...], refused: dict[str, str]) -> Calls:
    """Return what is timed, by case and implementation, and note why the others are not."""
    import jax

    from sharpmax.jax import IMPLEMENTATIONS, attention, row_stats, which_implementation

    on_gpu = jax.default_backend() == "gpu"
    timed: Calls = {(FORWARD, "plain"): _plain, (TRAINED, "plain"): _with_gradients(_plain)}
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
