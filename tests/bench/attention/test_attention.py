"""The attention benchmark checks before it times, says what it timed, and outlives a contestant that fails."""

import json
import math
import re

import entmax
import numpy as np
import pytest
import torch

from sharpmax import LogLinear
from sharpmax.bench import BENCHMARKS, bench
from sharpmax.bench import attention as benchmark
from sharpmax.bench.attention import contestants
from sharpmax.bench.attention.cases import FEATURES, Shape, time_heads, time_short, with_statistics
from sharpmax.bench.attention.figure import display
from sharpmax.bench.attention.inputs import KINDS, draw
from sharpmax.bench.attention.judging import COMPUTED, entmax15, error_of
from sharpmax.bench.attention.masks import settings
from sharpmax.bench.attention.memory import cpu_memory
from sharpmax.bench.attention.profile import short
from sharpmax.bench.attention.timing import timed
from sharpmax.bench.attention.torch import ON_A_GPU, PARTS
from sharpmax.bench.attention.turns import Entry, in_turns
from sharpmax.bench.random_policies import log_linear_per_head
from sharpmax.cli import main
from sharpmax.torch import attention
from tests.committed import committed
from tests.places import RESULTS

on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU's table")
SMALL = {"lengths": [64], "widths": [256], "repeats": 1, "threads": 1}  # two heads


@on_cpu
def test_the_cpu_table():
    figures = benchmark.measure(**SMALL, only=["ours", "math", "by-hand", "entmax"])
    rows = {(r["case"], r["implementation"]): r for r in figures["results"]}
    assert rows["plain", "flash_attention"]["ratio"] == 1.0
    for case in ("forward, rows sharpened", "forward + backward", "forward + backward, detached"):
        for name in ("stock", "chunked"):
            assert rows[case, name]["milliseconds"] > 0
    # Every forward case has plain attention on its own tensors beside it, timed with and without the host.
    for case in ("one row in eight sharpened", "no row sharpened", "sharpened from the middle on"):
        base, found = rows[f"plain, {case}", "flash_attention"], rows[f"forward, {case}", "chunked"]
        assert base["ratio"] == base["wall_ratio"] == 1.0
        assert found["ratio"] == found["milliseconds"] / base["milliseconds"]
        assert found["wall_ratio"] == found["wall_milliseconds"] / base["wall_milliseconds"]
    assert rows["row_stats", "chunked"]["error"] < 1e-5
    for name in ("math (dense SDPA)", "the paper's rule by hand", "entmax, dense"):
        assert rows["other, forward + backward", name]["error"] < 1e-4
    assert not benchmark.wrong(figures)
    benchmark.show(figures)


@on_cpu
def test_a_ratio_is_to_plain_attention_on_the_same_tensors(monkeypatch):
    """Times that depend on the tensors alone: a ratio is 1 only if its plain attention got the same ones."""
    times = {"0": 1.0, "1": 3.0, "2": 1.0, "3": 3.0, "4": 30.0}
    found = {key: {"milliseconds": ms, "wall_milliseconds": ms + 1} for key, ms in times.items()}
    monkeypatch.setattr("sharpmax.bench.attention.turns.timed", lambda *_, **__: found)
    fast, slow, alone = ([torch.randn(1, 1, 8, 16) for _ in range(3)] for _ in range(3))
    (kernel,), (ours, _) = contestants.plain("cpu"), contestants.ours("cpu")
    cases = [("plain", kernel, fast), ("plain, b", kernel, slow), ("a", ours, fast), ("b", ours, slow)]
    cases += [("c", ours, alone)]
    setting = contestants.Setting(8, 8, is_causal=True, device="cpu")
    rows = in_turns([Entry(*case) for case in cases], setting, 1)
    assert [row.get("ratio") for row in rows] == [1.0, 1.0, 1.0, 1.0, None]
    assert [row.get("wall_ratio") for row in rows] == [1.0, 1.0, 1.0, 1.0, None]


@on_cpu
def test_what_fails_says_why_and_stops_nothing(monkeypatch):
    def broken(setting):
        raise RuntimeError("no kernel\nfor this")

    def wrong(setting):
        return lambda q, k, v: torch.zeros_like(v)

    monkeypatch.setitem(contestants.OTHERS, "flex", contestants.Contestant("flex", "plain", broken))
    monkeypatch.setitem(contestants.OTHERS, "math", contestants.Contestant("math", "plain", wrong))
    monkeypatch.setitem(contestants.OTHERS, "by-hand", contestants.Contestant("absent", "plain", _absent))
    figures = benchmark.measure(**SMALL, only=["flex", "math", "by-hand", "entmax"])
    rows = {r["implementation"]: r for r in figures["results"] if r["case"] == "other, forward"}
    assert rows["flex"]["failed"] == "no kernel"
    assert "errs by 1.0e+00" in rows["math"]["failed"]
    assert rows["absent"]["failed"] == "no_such_package is not installed"
    assert "milliseconds" not in rows["math"]
    assert rows["entmax, dense"]["ratio"] > 0
    assert not benchmark.wrong(figures)  # they are others'
    benchmark.show(figures)


def _absent(setting):
    import no_such_package

    return no_such_package


@on_cpu
@pytest.mark.slow
def test_a_wrong_result_of_ours_is_not_timed_and_fails_the_command(monkeypatch, tmp_path, capsys):
    attention = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        "sharpmax.bench.attention.contestants.attention", lambda q, k, v, **_: attention(q, k, v, is_causal=True)
    )
    options = ["--only", "ours", "--lengths", "64", "--widths", "256", "--repeats", "1", "--threads", "1", "--json"]
    assert main(["bench", "attention", *options, str(tmp_path / "a.json")]) == 1
    line = capsys.readouterr().err.strip().splitlines()[-1]  # after each row's own
    assert line.startswith("sharpmax: wrong: forward, rows sharpened, 64 tokens")
    rows = json.loads((tmp_path / "a.json").read_text())["results"]
    assert all("not timed" in r["failed"] for r in rows if r["case"] == "forward, rows sharpened")


@on_cpu
def test_the_figure_is_drawn_beside_the_json_and_again_from_it(tmp_path):
    file = tmp_path / "figures.json"
    figures = bench("attention", json=file, only=["ours", "entmax"], **SMALL)
    svg = file.with_suffix(".svg").read_bytes()
    file.with_suffix(".png").unlink()
    assert bench("attention", draw=file) == figures
    assert file.with_suffix(".svg").read_bytes() == svg
    assert file.with_suffix(".png").exists()
    assert "entmax, dense" in display(figures).panels["forward + backward"]
    file.write_text("[]")
    with pytest.raises(ValueError, match="is not what bench --json wrote"):
        bench("attention", draw=file)


@on_cpu
@pytest.mark.parametrize("learns", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_models_ask_beyond_a_causal_mask_is_judged_as_asked(learns):
    """On a CPU, where the benchmark does not time it: every setting is served, and right."""
    inputs = draw("sharpened", length=64, width=16, tokens=128, features=32, dtype=torch.float32, device="cpu", seed=0)
    names = []
    for name, setting, tensors in settings(inputs, "cpu"):
        gradient = torch.ones_like(tensors[0]) if learns else None
        tensors = [x.detach().clone().requires_grad_(learns) for x in tensors]
        for contestant in (*contestants.plain("cpu"), *contestants.named("chunked", "triton")):
            entry = Entry(name, contestant, tensors, gradient)
            assert entry.check(setting, entry.call(setting)())["error"] < 1e-4
        names.append(name)
    assert names == ["padding mask", "window mask", "sinks", "softcap", "a stretch of a prompt"]


def test_the_committed_figures_can_be_drawn():
    files = [file for name in ("metrics", "others") for file in RESULTS.glob(f"attention/*/{name}.json")]
    assert len(files) > 2
    for file in files:
        assert display(json.loads(file.read_text())).panels["forward"]


def test_the_committed_profile_explains_the_committed_times():
    """The kernels of a call take no longer than the call, and nearly as long: nobody waits for the host."""
    measured, profiled = (committed("attention", "h200", f"{name}.json") for name in ("earlier", "profile"))
    assert profiled["commit"] == measured["commit"]
    best = {}
    for row in measured["results"]:
        if "milliseconds" in row:
            case = row["case"], row["length"], row["width"]
            best[case] = min(row["milliseconds"], best.get(case, math.inf))
    for row in profiled["results"]:
        case = row["case"], row["length"], row["width"]
        kernels = sum(row["microseconds"].values()) / 1e3
        assert 0.95 < kernels / best[case] < 1.01, row


ASKED = {
    "forward, rows sharpened": 1.65,
    "forward, no row sharpened": 1.5,
    "forward, retrieval": 1.2,
    "row_stats": 0.7,
    "forward + backward": 2.2,
    "forward + backward, detached": 1.35,
    "decode": 1.1,
}


def test_the_committed_times_are_within_what_was_asked():
    rows, missed = committed("attention", "h200", "metrics.json")["results"], {}
    for case, most in ASKED.items():
        ratios = {(r["length"], r["width"]): r["ratio"] for r in rows if r["case"] == case}
        assert len(ratios) == {"forward, retrieval": 2, "decode": 1}.get(case, 8), case
        missed |= {(case, *shape): ratio for shape, ratio in ratios.items() if ratio > most}
    # The one miss, which docs/kernels/cost.md states: 0.703 where 0.7 was asked.
    assert missed.keys() == {("row_stats", 2048, 64)}
    assert missed["row_stats", 2048, 64] < 0.705
    rows = committed("attention", "h200", "earlier.json")["results"]
    (memory,) = (r["ratio_of_memory"] for r in rows if r["case"] == "peak memory")
    assert memory <= 1.02


def test_no_committed_time_is_of_a_wrong_result_or_of_another_implementation():
    for name in ("metrics", "masks", "long", "float16", "float32"):
        assert not benchmark.wrong(committed("attention", "h200", f"{name}.json")), name
    masks = committed("attention", "h200", "masks.json")["results"]
    taken = {r["implementation"] for r in masks if r["case"].startswith(("forward", "decode"))}
    assert taken == {"triton", "chunked"}


def test_committed_memory_is_given_beyond_the_inputs_and_with_them():
    rows = committed("attention", "h200", "earlier.json")["results"]
    plain, ours = (next(r for r in rows if r["case"] == case) for case in ("plain, peak memory", "peak memory"))
    inputs = 3 * ours["length"] * FEATURES * 2 / 1e6  # of bfloat16
    before = [row["megabytes_with_inputs"] - row["megabytes"] for row in (plain, ours)]
    assert before[0] == pytest.approx(before[1])
    assert before[0] >= inputs
    rows = ours["length"] * FEATURES // ours["width"]
    more = rows * 4 / 1e6 * (1 + 1 / 64 + 1 / 192)  # beta of each row, marks and queue of tiles, four bytes each
    assert ours["megabytes"] - plain["megabytes"] == pytest.approx(more, rel=1e-3)
    assert ours["ratio_of_memory"] == pytest.approx(ours["megabytes"] / plain["megabytes"])


@on_cpu
def test_a_profile_names_what_each_case_spends_its_time_on():
    figures = benchmark.measure(**SMALL, only=["profile"])
    rows = {(r["case"], r["implementation"]): r for r in figures["results"]}
    (kernel,) = (name for name in rows["plain", "flash_attention"]["microseconds"] if "flash" in name)
    assert rows["forward, rows sharpened", "stock"]["microseconds"][kernel] > 0  # it attends by PyTorch's kernel
    assert kernel not in rows["forward, rows sharpened", "chunked"]["microseconds"]
    benchmark.show(figures)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("void at::native::(anonymous namespace)::fill<int, 4>(int, at::Array<char*, 1>)", "fill"),
        ("Memset (Device)", "Memset (Device)"),
        ("statistics_kernel", "statistics_kernel"),
    ],
)
def test_a_kernel_is_called_by_its_own_name(kernel, name):
    assert short(kernel) == name


@pytest.mark.slow
@on_cpu
def test_memory_of_chunked_is_linear():
    """Four times the tokens take about four times the memory; a matrix of logits would take sixteen times."""
    short, long = (cpu_memory(length)["megabytes"] for length in (2048, 8192))
    assert 1 < long < 5 * short


@on_cpu
@pytest.mark.parametrize("part", sorted(ON_A_GPU))
def test_what_needs_a_gpu_says_so(part):
    with pytest.raises(ValueError, match=f"^{part}: measured on a GPU alone"):
        benchmark.measure(only=["ours", part])


def test_the_help_names_every_part():
    (of_attention,) = (b for b in BENCHMARKS if b.name == "attention")
    named = re.findall(r"[\w-]+", of_attention.options["--only"]["help"])
    assert set(PARTS) <= set(named)


def test_a_slow_contestant_takes_fewer_turns(monkeypatch):
    monkeypatch.setattr("sharpmax.bench.attention.timing.SECONDS_EACH", 0.0)
    calls = []
    timed({"slow": lambda: calls.append(1)}, device="cpu", repeats=50)
    assert len(calls) == 2 + 3


@pytest.mark.filterwarnings("ignore::sharpmax.SilentPolicyWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_inputs_are_what_they_say(kind):
    q, k, v = draw(kind, length=2048, width=64, tokens=2048, features=64, dtype=torch.float32, device="cpu", seed=0)
    assert q.shape == k.shape == v.shape == (1, 1, 2048, 64)
    _, stats = attention(q, k, v, is_causal=True, return_stats=True, implementation="chunked")
    shares = {
        "sharpened": (0.99, 1),
        "peaked": (1 / 12, 1 / 6),
        "paired": (0, 0),
        "scattered": (0.02, 0.25),  # 32 stretches were drawn
        "turning": (0.98, 1),  # of equal twos the entropy is log 2 higher: a few rows pass the range of the polynomial
        "retrieval": (0, 0),
    }
    sharpened = stats.inverse_temperature > 1
    low, high = shares[kind]
    assert low <= sharpened[..., 1024:].float().mean().item() <= high
    if kind == "turning":
        assert not sharpened[..., :1024].any()
    largest = (stats.maximum - stats.logsumexp).exp()
    assert (largest > 0.999).all() if kind == "retrieval" else (largest < 0.6).any()
    with pytest.raises(ValueError, match="kind must be"):
        draw("other", length=8, width=8, tokens=8, features=8, dtype=torch.float32, device="cpu", seed=0)


def test_entmax_of_the_judge_is_that_of_the_package():
    logits = torch.randn(50, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    logits[0, 5:] = -torch.inf
    torch.testing.assert_close(entmax15(logits), entmax.entmax_bisect(logits, alpha=1.5, n_iter=60))


@pytest.mark.parametrize("kind", ["plain", "sharpened", "entmax"])
def test_the_judge_accepts_the_function_itself_and_nothing_else(kind):
    tensors = draw(
        "sharpened", length=128, width=16, tokens=128, features=32, dtype=torch.float32, device="cpu", seed=0
    )
    q, k, v = tensors
    hidden = torch.ones(128, 128, dtype=torch.bool).triu(1)
    logits = (q @ k.mT / 4).masked_fill(hidden, -torch.inf)
    for other in ("plain", "sharpened", "entmax"):
        output = COMPUTED[other](logits, v)
        if other == kind:
            assert error_of(kind, output, tensors, is_causal=True) < 1e-5
        else:
            with pytest.raises(ArithmeticError, match="not timed"):
                error_of(kind, output, tensors, is_causal=True)


@on_cpu
def test_other_policies_and_statistics_are_judged_by_themselves_and_beside_plain(tmp_path):
    figures = benchmark.measure(**SMALL, only=["policies", "statistics"])
    rows = {(r["case"], r["implementation"]): r for r in figures["results"]}
    for name in ("LogLinear per head", "EntropyTarget(1.0)", "without return_stats", "with return_stats"):
        for by in ("stock", "chunked") if name == "without return_stats" else ("chunked",):
            found = rows[f"forward, {name}", by]
            assert found["error"] < 1e-4
            about = "other policies" if "return_stats" not in name else "forward, statistics"
            plain = rows[f"plain, {about}", "flash_attention"]
            assert found["ratio"] == found["milliseconds"] / plain["milliseconds"]
    benchmark.show(figures)
    assert "sharpmax chunked: LogLinear per head" in display(figures).panels["forward"]
    assert benchmark.draw_figure(figures, tmp_path, "policies").exists()


@on_cpu
def test_every_head_is_judged_by_its_own_numbers():
    shape = Shape("cpu", 64, 16, 0, heads=(6, 2))
    policy = log_linear_per_head(6)
    tensors = shape.inputs("sharpened")
    assert [x.shape[1] for x in tensors] == [6, 2, 2]
    options = {"is_causal": True, "policy": policy}
    assert error_of("policy", attention(*tensors, policy=policy, is_causal=True), tensors, **options) < 1e-5
    for other in (log_linear_per_head(6, np.random.default_rng(1)), LogLinear(*(x[::-1] for x in numbers(policy)))):
        with pytest.raises(ArithmeticError, match="not timed"):
            error_of("policy", attention(*tensors, policy=other, is_causal=True), tensors, **options)


def numbers(policy):
    return policy.a, policy.b, policy.c


@on_cpu
def test_wrong_statistics_beside_a_right_output_are_not_timed():
    shape = Shape("cpu", 32, 16, 0)
    (entry,) = (e for e in with_statistics(shape) if e.contestant.returns_stats)
    output, stats = entry.call(shape.setting)()
    assert entry.check(shape.setting, (output, stats))["error"] < 1e-5
    with pytest.raises(ArithmeticError, match="not timed"):
        entry.check(shape.setting, (output, stats._replace(entropy=stats.entropy * 1.1)))


@on_cpu
def test_short_sequences_and_wide_heads_have_their_rows():
    """What the GPU times, in small: each of the cases is judged, and has plain attention on its own tensors."""
    rows = [r for group in time_short("cpu", 1, 0, lengths=(32, 64)) for r in group]
    rows += [r for group in time_heads(Shape("cpu", 32, 96, 0), 1) for r in group]
    ours = [r for r in rows if not r["case"].startswith("plain") and r["implementation"] == "chunked"]
    assert [r["case"] for r in ours] == [
        *(f"forward, 12/12 heads, {which} return_stats" for which in ("without", "with")),
        "forward + backward, 12/12 heads",
        *(f"forward, 9/3 heads, {which} return_stats" for which in ("without", "with")),
        "forward + backward, 9/3 heads",
        "forward, rows sharpened",
        "forward + backward",
    ]
    assert all(r["ratio"] > 0 and r["error"] < 1e-4 for r in ours)
