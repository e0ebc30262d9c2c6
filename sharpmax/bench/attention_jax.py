"""What sharpened attention costs in JAX: every implementation that can serve, beside plain attention, in one run.

Plain attention is `jax.nn.dot_product_attention`, by cuDNN on a GPU; ratios are to that, forward to forward and
gradients to gradients, row statistics to forward. The shapes and the spread of the logits are those of the PyTorch
table. Output, entropy and the query's gradient are compared with float64 first, on the last rows of one head; what errs
by more than twice what attention as people write it errs, and a rounding, is not timed.
"""

import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from sharpmax import PAPER, Constant
from sharpmax.bench.attention_inputs import SPREAD
from sharpmax.bench.timing import interleaved_medians
from sharpmax.extras import extra

TOKENS, FEATURES = 16384, 2048
CALLS = 5  # in a timed round, waited for once: what a call costs beyond the device's work is hidden behind the next
DENSE = 4096  # tokens up to which the dense implementation's matrix is worth holding
ROWS = 64  # that are judged
FORWARD, TRAINED, STATISTICS = "forward, rows sharpened", "forward + backward", "row_stats"

Calls = dict[tuple[str, str], Callable[..., Any]]


def measure(
    *, lengths: Sequence[int] = (), widths: Sequence[int] = (128, 64), repeats: int = 15, seed: int = 0
) -> dict[str, Any]:
    """Check, then time, every case; returns milliseconds, the ratio to plain attention, memory, and what refused.

    Args:
        lengths: tokens in a sequence; none named: 2048, 4096, 16384 on a GPU, 1024 on a CPU.
        widths: of a head; the features stay the same, so a narrower head means more of them.
        repeats: timed rounds of each contestant, in turns.
        seed: of the inputs.

    Raises:
        ValueError: for a length, width or number of repeats below 1.
        ArithmeticError: if a result is further from float64 than the budget; nothing was timed.
    """
    if min([1, *lengths, *widths, repeats]) < 1:
        raise ValueError(f"expected sizes and repeats of at least 1, got {lengths}, {widths}, {repeats}")
    with extra("jax"):
        import jax
    on_gpu = jax.default_backend() == "gpu"
    tokens, features = (TOKENS, FEATURES) if on_gpu else (1, 128)  # a CPU measures one sequence
    results: list[dict[str, Any]] = []
    refused: dict[str, str] = {}
    for length in lengths or ((2048, 4096, 16384) if on_gpu else (1024,)):
        for width in widths:
            shape = (max(1, tokens // length), length, max(1, features // width), width)
            results += _at(shape, repeats, seed, refused)
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
    for r in figures["results"]:
        numbers = (f"{r['milliseconds']:.3f}", f"{r['ratio']:.2f}", f"{r['error']:.1e}", f"{r['megabytes']:.0f}")
        table.add_row(r["case"], str(r["length"]), str(r["width"]), r["implementation"], *numbers)
    return table


def _at(shape: tuple[int, int, int, int], repeats: int, seed: int, refused: dict[str, str]) -> list[dict[str, Any]]:
    """Time every contestant of one shape (B, T, N, H)."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def drawn(key: Any) -> Any:
        q, k, v, d = (jax.random.normal(part, shape) for part in jax.random.split(key, 4))
        return tuple(x.astype(jnp.bfloat16) for x in (q * SPREAD.get(shape[1], 2.4), k, v, d))

    inputs = drawn(jax.random.key(seed))

    def compiled(item: tuple[tuple[str, str], Callable[..., Any]]) -> tuple[Any, Any]:
        (case, _), call = item
        given = inputs if case == TRAINED else inputs[:3]
        return jax.jit(call).lower(*given).compile(), given

    contestants = _contestants(inputs, refused)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        programs = dict(zip(contestants, pool.map(compiled, contestants.items()), strict=True))
    errors = {key: _judged(*key, program(*given), inputs) for key, (program, given) in programs.items()}

    def rounds(program: Any, given: Any) -> Callable[[], Any]:
        def run() -> Any:
            for _ in range(CALLS):
                result = program(*given)
            return jax.block_until_ready(result)  # the device runs them in order

        return run

    medians = interleaved_medians({f"{c}|{n}": rounds(*p) for (c, n), p in programs.items()}, repeats=repeats)
    results = []
    for (case, name), (program, _) in programs.items():
        plain = medians[f"{FORWARD if case == STATISTICS else case}|plain"]
        results.append(
            {
                "case": case,
                "length": shape[1],
                "width": shape[3],
                "implementation": name,
                "milliseconds": 1e3 * medians[f"{case}|{name}"] / CALLS,
                "ratio": medians[f"{case}|{name}"] / plain,
                "megabytes": program.memory_analysis().temp_size_in_bytes / 1e6,
                "error": errors[case, name],
            }
        )
    return results


def _contestants(inputs: tuple[Any, ...], refused: dict[str, str]) -> Calls:
    """Return what is timed, by case and implementation, and note why the others are not."""
    import jax

    from sharpmax.jax import IMPLEMENTATIONS, attention, row_stats, which_implementation

    on_gpu = jax.default_backend() == "gpu"

    def plain(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn" if on_gpu else "xla")

    def trained(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(q: Any, k: Any, v: Any, d: Any) -> Any:
            output, pull = jax.vjp(forward, q, k, v)
            return output, pull(d)

        return run

    timed: Calls = {(FORWARD, "plain"): plain, (TRAINED, "plain"): trained(plain)}
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

        timed |= {(FORWARD, name): forward, (TRAINED, name): trained(forward)}
        if not (name == "pallas" and (STATISTICS, "pallas_cudnn") in timed):  # whose statistics are the same
            timed[STATISTICS, name] = statistics
    return timed


def _judged(case: str, name: str, result: Any, inputs: tuple[Any, ...]) -> float:
    """Return the error in norm of the last rows of a head: output, entropy, or gradient of the query."""
    import jax.numpy as jnp

    q, k, v, d = (np.asarray(x[0, -ROWS:, 0] if i in (0, 3) else x[0, :, 0], np.float64) for i, x in enumerate(inputs))
    policy = Constant(1.0) if name == "plain" else PAPER
    exact, low = (_dense(q, k, v, d, policy, rounded) for rounded in (lambda x: x, _in_bfloat16))
    which = {FORWARD: "output", TRAINED: "gradient", STATISTICS: "entropy"}[case]
    found = result.entropy[0, 0] if case == STATISTICS else (result[1][0] if case == TRAINED else result)[0, :, 0]
    found = np.asarray(found[-ROWS:].astype(jnp.float32), np.float64)
    error, spent = (float(np.linalg.norm(x - exact[which]) / np.linalg.norm(exact[which])) for x in (found, low[which]))
    allowed = 2 * spent + 2.0**-8
    if not error <= allowed:
        raise ArithmeticError(
            f"{case} by {name} errs by {error:.1e}, at most {allowed:.1e} is allowed; nothing was timed"
        )
    return error


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
