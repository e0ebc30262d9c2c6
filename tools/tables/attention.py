"""Tables of the attention benchmarks: ratios to plain attention of the same run, memory, and time per kernel."""

import textwrap
from collections.abc import Iterable
from typing import Any

from tools.tables.records import between, commit_of, markdown, read, table

LENGTHS, WIDTHS = (2048, 4096, 8192, 16384), (128, 64)
KERNELS = {"statistics": ("statistics",), "output": ("once", "single_pass", "cudnn"), "leaders": ("leaders",)}
"""What the names of our kernels begin with, by what they compute."""
JAX_NAMES = {"pallas_cudnn": "hybrid", "pallas": "pallas"}
"""Implementations in the committed record of JAX, and what they are called now."""
ASKED: dict[str, tuple[float, float | None]] = {
    "row_stats": (0.7, 0.55),
    "forward, rows sharpened": (1.65, 1.5),
    "forward, no row sharpened": (1.5, 1.1),
    "forward, retrieval": (1.2, 0.9),
    "forward + backward": (2.2, 1.5),
    "forward + backward, detached": (1.35, 1.2),
    "decode": (1.1, 1.0),
}
"""The most that was asked of each case, and the goal beyond it."""


def _rows(*place: str, **having: object) -> list[dict[str, Any]]:
    rows = read(*place)["results"]
    return [row for row in rows if all(row.get(key) == value for key, value in having.items())]


def _h200(name: str, **having: object) -> list[dict[str, Any]]:
    return _rows("attention", "h200", f"{name}.json", **having)


def _ratios(rows: Iterable[dict[str, Any]]) -> list[float]:
    return [row["ratio"] for row in rows if "ratio" in row]


def _range(rows: list[dict[str, Any]]) -> str:
    """Return the range of the ratios of device times, and in brackets with the host's time, where that was measured."""
    wall = [row["wall_ratio"] for row in rows if "wall_ratio" in row]
    return between(_ratios(rows)) + (f" ({between(wall)})" if wall else "")


@table
def attention_conditions() -> str:
    """Return what the ratios of the committed H200 record are to, and whether they count the host's time."""
    rows = _h200("metrics")
    if any(row["case"] == "plain, no row sharpened" for row in rows):
        inputs = "Plain attention is timed on the same tensors as each case, in turns with it."
    else:
        inputs = (
            "Plain attention is timed once per shape, on the inputs of *rows sharpened*. So the ratios of\n"
            "  other inputs (no row sharpened, retrieval, …) are of times on different tensors."
        )
    host = "The device is kept busy before each timed call, so the host's time to launch kernels is hidden."
    if any("wall_ratio" in row for row in rows):
        host += "\n  In brackets: the ratio of wall times of whole calls, with the host's time."
    return f"\n- **Inputs.** {inputs}\n- **Host time.** {host}\n"


def _by_width(rows: list[dict[str, Any]], key: str = "ratio", places: int = 2) -> str:
    found = {row["width"]: row[key] for row in rows if key in row}
    return " / ".join(f"{found[width]:.{places}f}" for width in WIDTHS if width in found)


def sharpened_ratios() -> list[float]:
    """Return the ratios of a forward call with every row sharpened on an H200, on the device."""
    return _ratios(_h200("metrics", case="forward, rows sharpened"))


def forward_range() -> str:
    """Return ratios of a forward call with every row sharpened on an H200, device and wall, and the code's commit."""
    rows = _h200("metrics", case="forward, rows sharpened")
    wall = [row["wall_ratio"] for row in rows]
    worst = max(rows, key=lambda row: row["wall_ratio"])["length"] // 1024
    commit = commit_of(read("attention", "h200", "metrics.json"))
    device = f"{between(_ratios(rows))} of its time on the device"
    return f"{device}, {between(wall)} with the host's (most at {worst}k tokens); code of {commit}"


@table
def attention_cost() -> str:
    """Return the range of ratios of sharpened attention by device and direction."""
    jax = ("attention-jax", "h200", "metrics.json")
    cpu = ("attention", "cpu", "metrics.json")
    forward, backward = "forward, rows sharpened", "forward + backward"
    older, then = commit_of(read(*jax)), commit_of(read("attention", "h200", "metrics.json"))
    rows = [
        [
            "H200, PyTorch, bfloat16, 2k\N{EN DASH}16k tokens, older code "
            f"([record](results/attention/h200/metrics.json) of {then})"
        ]
        + [_range(_h200("metrics", case=case)) for case in (forward, backward, "decode")],
        [f"H200, JAX, over cuDNN, older code ([record](results/attention-jax/h200/metrics.json) of {older})"]
        + [_range(_rows(*jax, case=case, implementation="pallas_cudnn")) for case in (forward, backward)]
        + [""],
        ["two CPU cores, float32, 4k tokens ([record](results/attention/cpu/metrics.json))"]
        + [_range(_rows(*cpu, case=case, implementation="chunked")) for case in (forward, backward)]
        + [""],
    ]
    return markdown(["every row sharpened by `PAPER`", "forward", "forward and backward, through β", "decode"], rows)


@table
def attention_cases() -> str:
    """Return the range of ratios of other inputs and settings on an H200."""
    step = "forward + backward"
    plain = {row["width"]: row["megabytes"] for row in _best(_h200("metrics", case=f"plain, {step}", length=16384))}
    more = [row["megabytes"] / plain[row["width"]] for row in _h200("metrics", case=step, length=16384)]
    (peak,) = (row["ratio_of_memory"] for row in _h200("earlier", case="peak memory"))
    (hand,) = _ratios(_h200("others", case="other, forward", implementation="the paper's rule by hand"))
    (compiled,) = _ratios(_h200("others", case="other, forward", implementation="the paper's rule, torch.compile"))
    rows = [
        [
            "no row needs sharpening, 2k\N{EN DASH}16k tokens",
            _range(_h200("metrics", case="forward, no row sharpened")),
        ],
        [
            "one key takes nearly all of every row, 16k tokens",
            _range(_h200("metrics", case="forward, retrieval")),
        ],
        [
            "every row sharpened, one sequence of 131,072 tokens",
            _range(_h200("long", case="forward, rows sharpened")),
        ],
        [
            "a padded batch, over PyTorch's fastest kernel that takes the mask",
            _range(_h200("masks", case="forward, padding mask", implementation="triton")),
        ],
        ["peak memory beyond the inputs, 131,072 tokens", f"{peak:.3f}"],
        ["peak memory of a training step, 16,384 tokens", between(more)],
        ["the paper's rule in plain PyTorch, eager, 2k tokens", f"{hand:.0f}"],
        ["the paper's rule in plain PyTorch, `torch.compile`, 2k tokens", f"{compiled:.0f}"],
    ]
    return markdown(["H200, forward unless said", "of plain attention"], rows)


def _best(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the fastest row of each length and width."""
    timed = sorted((row for row in rows if "milliseconds" in row), key=lambda row: -row["milliseconds"])
    return list({(row["length"], row["width"]): row for row in timed}.values())


@table
def kernels_cost() -> str:
    """Return the time of plain attention, then each case of ours by length and width: asked, met, ratios."""
    cases = [row["case"] for row in _h200("metrics") if row["implementation"] == "hybrid" and "ratio" in row]
    rows = []
    for case, said in (("plain", "plain, forward, ms"), ("plain, forward + backward", "plain, forward + backward, ms")):
        timed = [_best(_h200("metrics", case=case, length=length)) for length in LENGTHS]
        rows.append([said, "", "", *(_by_width(best, "milliseconds") for best in timed)])
    for case in dict.fromkeys(cases):
        asked, goal = ASKED.get(case, (None, None))
        cells = [_by_width(_h200("metrics", case=case, length=length)) for length in LENGTHS]
        rows.append([f"`{case}`" if case == "row_stats" else case, *_verdict(case, asked, goal), *cells])
    return markdown(["case", "asked (goal)", "met", "N = 2k, D = 128 / 64", "4k", "8k", "16k"], rows)


def _verdict(case: str, asked: float | None, goal: float | None) -> list[str]:
    if asked is None or goal is None:
        return ["", ""]
    ratios = _ratios(_h200("metrics", case=case))
    at_goal = sum(ratio <= goal for ratio in ratios)
    met = "yes" if max(ratios) <= asked else f"in {sum(r <= asked for r in ratios)} of {len(ratios)}"
    return [f"{asked:g} ({goal:g})", f"{met} (goal: {at_goal} of {len(ratios)})"]


@table
def kernels_wall() -> str:
    """Return the same cases with the host's time counted, where the record has it."""
    timed = [row for row in _h200("metrics") if "wall_ratio" in row and row["length"] in LENGTHS]
    cases = dict.fromkeys(row["case"] for row in timed if row["case"] in ASKED)
    if not cases:
        return "The record has no wall times."
    rows = [
        [case, *(_by_width(_h200("metrics", case=case, length=length), "wall_ratio") for length in LENGTHS)]
        for case in cases
    ]
    return markdown(["wall time of whole calls", "N = 2k, D = 128 / 64", "4k", "8k", "16k"], rows)


@table
def kernels_decode() -> str:
    """Return decode's ratio and time, and memory beyond the inputs and with them."""
    graph = "decode, CUDA graph"
    rows = []
    for case in ("decode", graph):
        (row,) = _h200("metrics", case=case)
        rows.append([f"{case}, batch 32, 32/8 heads, 32k keys", f"{row['milliseconds']:.3f} ms", f"{row['ratio']:.3f}"])
    plain, ours = (_h200("earlier", case=case)[0] for case in ("plain, peak memory", "peak memory"))
    for said, key in (("beyond the inputs", "megabytes"), ("with the inputs", "megabytes_with_inputs")):
        rows.append([f"peak memory {said}, 131,072 tokens", f"{ours[key]:,.1f} MB", f"{ours[key] / plain[key]:.3f}"])
    for width in WIDTHS:
        (step,) = _h200("metrics", case="forward + backward", length=16384, width=width)
        (best,) = _best(_h200("metrics", case="plain, forward + backward", length=16384, width=width))
        shown = f"{step['megabytes']:,.1f} MB", f"{step['megabytes'] / best['megabytes']:.2f}"
        rows.append([f"peak memory of a training step, 16,384 tokens, D = {width}", *shown])
    return markdown(["", "ours", "of plain"], rows)


@table
def kernels_masks() -> str:
    """Return ratios under a mask, sinks and a softcap, ours and by `chunked`."""
    names = ("padding mask", "window mask", "sinks", "softcap", "a stretch of a prompt")
    rows = [
        [name]
        + [
            _by_width(_h200("masks", case=f"{which}, {name}", implementation=implementation))
            for which in ("forward", "forward + backward")
            for implementation in ("triton", "chunked")
        ]
        for name in names
    ]
    decode = [_by_width(_h200("masks", case="decode, padding mask", implementation=i)) for i in ("triton", "chunked")]
    rows.append(["padding mask, decode", *decode, "", ""])
    return markdown(["", "forward, D = 128 / 64", "by `chunked`", "forward + backward", "by `chunked`"], rows)


@table
def kernels_precision() -> str:
    """Return ratios in float32 by implementation, and in float16."""
    rows = []
    for implementation in ("stock", "triton", "chunked"):
        cells = []
        for case in ("forward, float32", "forward + backward, float32"):
            found = _best(_h200("float32", case=case, implementation=implementation))
            cells.append(_by_width(found, places=1))
        rows.append([f"float32, every row sharpened, `{implementation}`", *cells])
    for said, case in (("every row sharpened", "rows sharpened"), ("no row sharpened", "no row sharpened")):
        forward = _by_width(_h200("float16", case=f"forward, {case}, float16"))
        both = _by_width(_h200("float16", case="forward + backward, float16")) if case == "rows sharpened" else ""
        rows.append([f"float16, {said}", forward, both])
    return markdown(["4,096 tokens, D = 128 / 64", "forward", "forward + backward"], rows)


@table
def kernels_long() -> str:
    """Return ratios of one sequence of 131,072 tokens."""
    rows = [[row["case"], f"{row['ratio']:.2f}"] for row in _h200("long", implementation="hybrid")]
    return markdown(["131,072 tokens, D = 128", "of plain"], rows)


@table
def kernels_others() -> str:
    """Return ratios, memory and errors of others' code on the same inputs."""
    names = dict.fromkeys(row["implementation"] for row in _h200("others"))
    rows = []
    for name in names:
        cells = []
        for case in ("other, forward", "other, forward + backward"):
            (row,) = _h200("others", case=case, implementation=name)
            cells += [f"{row['ratio']:.1f}", f"{row['megabytes'] / 1e3:.1f}", f"{row['error']:.0e}"]
        rows.append([name, *cells])
    header = ["2k tokens, D = 128", "forward", "GB", "error", "forward + backward", "GB", "error"]
    return markdown(header, rows)


def _spent(case: str, length: int, width: int) -> dict[str, float]:
    """Return microseconds by kind of kernel, and of the rest together."""
    found = _h200("profile", case=case, length=length, width=width)
    if not found:
        return {}
    left = dict(found[0]["microseconds"])
    spent = {}
    for kind, prefixes in KERNELS.items():
        spent[kind] = sum(left.pop(name) for name in list(left) if name.startswith(prefixes))
    return spent | {"rest": sum(left.values())}


@table
def kernels_profile() -> str:
    """Return microseconds per kernel: statistics, output, leaders, and the rest, by case, length and width."""
    rows = []
    for case in dict.fromkeys(row["case"] for row in _h200("profile")):
        cells = []
        for length in LENGTHS:
            by_width = []
            for width in WIDTHS:
                spent = _spent(case, length, width)
                shown = [f"{spent[kind]:,.0f}" for kind in spent if spent[kind] >= 0.5 or kind == "rest"]
                by_width.append(" + ".join(shown))
            cells.append(" / ".join(filter(None, by_width)))
        kinds = [kind for kind in (*KERNELS, "rest") if _spent(case, 16384, 128)[kind] >= 0.5 or kind == "rest"]
        rows.append([f"{case}: {' + '.join(kinds)}", *cells])
    return markdown(["", "N = 2k, D = 128 / 64", "4k", "8k", "16k"], rows)


@table
def kernels_single_pass() -> str:
    """Return the single-pass kernel's time over cuDNN's: with a beta of each row, and with entropies."""
    rows = []
    for said, case in (("beta", "forward, rows sharpened"), ("entropies", "forward, no row sharpened")):
        cells = []
        for length in LENGTHS:
            # A launch that ends at once takes about 3 microseconds, and is counted with the kernel.
            ours, plain = ([_spent(of, length, width)["output"] for width in WIDTHS] for of in (case, "plain"))
            cells.append(" / ".join(f"{(a - 3) / b:.2f}" for a, b in zip(ours, plain, strict=True)))
        rows.append([f"with {said}", *cells])
    return markdown(["single pass over cuDNN", "N = 2k, D = 128 / 64", "4k", "8k", "16k"], rows)


@table
def kernels_training() -> str:
    """Return milliseconds of a training step's attention at 16k tokens and D = 128."""
    cases = {"through beta": "forward + backward", "detached": "forward + backward, detached"}
    cases["plain"] = "plain, forward + backward"
    found = {said: _best(_h200("metrics", case=case, length=16384, width=128)) for said, case in cases.items()}
    cells = [f"{rows[0]['milliseconds']:.2f}" for rows in found.values()]
    return markdown(["forward + backward, 16k tokens, D = 128", *found], [["ms", *cells]])


@table
def kernels_cpu() -> str:
    """Return ratios on a CPU by implementation and width, and the memory of `chunked`."""
    place = ("attention", "cpu", "metrics.json")
    cases = (
        "forward, rows sharpened",
        "forward, no row sharpened",
        "forward + backward",
        "forward + backward, detached",
    )
    rows = []
    for implementation in ("stock", "chunked"):
        cells = [_by_width(_rows(*place, case=case, implementation=implementation)) for case in cases]
        rows.append([f"`{implementation}`", *cells])
    return markdown(["4,096 tokens, D = 128 / 64", *cases], rows)


@table
def reading_time() -> str:
    """Return how long SmolLM2 reads with its card, over reading without."""
    found = read("evaluate", "smollm2-quick", "metrics.json")["reading_time"]
    said = (
        f"**A whole model.** SmolLM2 reads {found['median']:.2f} times as long with its card as without (quartiles "
        f"{found['low']:.2f} to {found['high']:.2f}, {found['turns']} turns, two idle cores). 1.15 was asked, and 1.05 "
        "hoped for: `sharpmax evaluate smollm2 --card smollm2 --quick`."
    )
    return textwrap.fill(said, 118)


@table
def kernels_cpu_memory() -> str:
    """Return the peak memory of `chunked` on a CPU by length."""
    rows = _rows("attention", "cpu", "memory.json")
    header = ["one head of 64", *(f"{row['length']:,} tokens" for row in rows)]
    return markdown(header, [["MB beyond the inputs", *(f"{row['megabytes']:.0f}" for row in rows)]])


@table
def jax_cost() -> str:
    """Return JAX's ratios to cuDNN by case, implementation, width and length, with what was asked."""
    place = ("attention-jax", "h200", "metrics.json")
    asked = {"forward, rows sharpened": "1.9 (1.5)", "forward + backward": "2.5", "row_stats": "0.8"}
    rows = []
    for implementation, shown in JAX_NAMES.items():
        for case in asked:
            found = _rows(*place, case=case, implementation=implementation)
            if not found:
                continue
            cells = [_by_width([row for row in found if row["length"] == length]) for length in LENGTHS]
            rows.append([case, f"`{shown}`", asked[case] if shown == "hybrid" else "", *cells])
    header = ["case", "implementation", "asked (goal)", "N = 2k, D = 128 / 64", "4k", "8k", "16k"]
    return markdown(header, rows)


@table
def jax_errors() -> str:
    """Return the error of JAX's implementations, in percent of the norm."""
    place = ("attention-jax", "h200", "metrics.json")
    rows = []
    for implementation, shown in ({"plain": "plain"} | JAX_NAMES).items():
        cells = []
        for case in ("forward, rows sharpened", "forward + backward"):
            errors = [100 * row["error"] for row in _rows(*place, case=case, implementation=implementation)]
            cells.append(between(errors, 1))
        rows.append([f"`{shown}`", *cells])
    return markdown(["error, % of the norm", "output", "gradient of the query"], rows)


@table
def jax_memory() -> str:
    """Return the memory of one long sequence, by the compiler's count."""
    place = ("attention-jax", "h200", "metrics.json")
    lengths = (16384, 32768, 65536, 131072)
    rows = []
    for which in ("forward", "forward + backward"):
        found = {row["length"]: row["megabytes"] for row in _rows(*place, case=f"memory of one sequence, {which}")}
        rows.append([which, *(f"{found[length]:,.0f}" for length in lengths)])
    return markdown(["MB beside inputs and results, D = 128", *(f"{n:,} tokens" for n in lengths)], rows)
