"""What sharpened attention costs in JAX: every implementation that can serve, beside plain attention, in one run.

Plain attention is `jax.nn.dot_product_attention`, by cuDNN on a GPU; ratios are to that, forward to forward and
gradients to gradients, row statistics to forward. The shapes and the spread of the logits are those of the PyTorch
table. A result is compared with float32 first, on one head; a wrong one is not timed.
"""

import platform
from collections.abc import Callable, Sequence
from typing import Any

from sharpmax import PAPER, Constant
from sharpmax.bench.attention_inputs import SPREAD
from sharpmax.bench.timing import interleaved_medians
from sharpmax.extras import extra

TOKENS, FEATURES = 16384, 2048
CALLS = 5  # in a timed round, waited for once: what a call costs beyond the device's work is hidden behind the next
DENSE = 4096  # tokens up to which the dense implementation's matrix is worth holding
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
        ArithmeticError: if a result is further from float32 than rounding explains; it is not timed.
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
        error = f"{r['error']:.1e}" if "error" in r else ""
        numbers = (f"{r['milliseconds']:.3f}", f"{r['ratio']:.2f}", error, f"{r['megabytes']:.0f}")
        table.add_row(r["case"], str(r["length"]), str(r["width"]), r["implementation"], *numbers)
    return table


def _at(shape: tuple[int, int, int, int], repeats: int, seed: int, refused: dict[str, str]) -> list[dict[str, Any]]:
    """Time every contestant of one shape (B, T, N, H)."""
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.key(seed), 4)
    q, k, v, d = (jax.random.normal(key, shape) for key in keys)
    q = q * SPREAD.get(shape[1], 2.4)
    inputs = tuple(x.astype(jnp.bfloat16) for x in (q, k, v, d))

    programs: dict[tuple[str, str], tuple[Any, Any]] = {}
    errors: dict[tuple[str, str], float] = {}
    for (case, name), call in _contestants(inputs, refused).items():
        given = inputs if case == TRAINED else inputs[:3]
        programs[case, name] = (jax.jit(call).lower(*given).compile(), given)
        if case == FORWARD:
            errors[case, name] = _judged(name, programs[case, name][0](*given), inputs)

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
                **({"error": errors[case, name]} if (case, name) in errors else {}),
            }
        )
    return results


def _contestants(inputs: tuple[Any, ...], refused: dict[str, str]) -> Calls:
    """Return what is timed, by case and implementation, and note why the others are not."""
    import jax

    from sharpmax.jax import IMPLEMENTATIONS, attention, row_stats, which_implementation

    def plain(q: Any, k: Any, v: Any) -> Any:
        kernel: Any = "cudnn" if jax.default_backend() == "gpu" else "xla"
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=kernel)

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
        try:
            which_implementation(*inputs[:3], is_causal=True, implementation=name)
        except NotImplementedError as reason:
            refused[name] = str(reason)
            continue

        def forward(q: Any, k: Any, v: Any, name: str = name) -> Any:
            return attention(q, k, v, policy=PAPER, is_causal=True, implementation=name)

        def statistics(q: Any, k: Any, v: Any, name: str = name) -> Any:
            return row_stats(q, k, is_causal=True, implementation=name)

        timed |= {(FORWARD, name): forward, (TRAINED, name): trained(forward), (STATISTICS, name): statistics}
    return timed


def _judged(name: str, output: Any, inputs: tuple[Any, ...]) -> float:
    """Return the error of one head against float32 products, if it is a few roundings of bfloat16."""
    import jax.numpy as jnp

    from sharpmax.jax import attention

    q, k, v = (x[:1, :, :1].astype(jnp.float32) for x in inputs[:3])
    policy = Constant(1.0) if name == "plain" else PAPER
    exact = attention(q, k, v, policy=policy, is_causal=True, implementation="chunked")
    difference = output[:1, :, :1].astype(jnp.float32) - exact
    error = float(jnp.linalg.norm(difference) / jnp.linalg.norm(exact))
    # The logits, the weights and the output are each rounded to 2⁻⁹ of themselves, and logits reach about 10.
    budget = 10 * 2.0**-8
    if not error <= budget:
        raise ArithmeticError(f"{name}: expected an error of at most {budget:.1e}, got {error:.1e}; nothing was timed")
    return error
