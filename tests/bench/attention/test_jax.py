"""The JAX attention benchmark checks before it times, says what it timed, and why the rest refused."""

import jax
import pytest

from sharpmax.bench import attention
from sharpmax.bench.attention import jax as benchmark
from sharpmax.bench.attention.jax_judging import Exact
from sharpmax.cli import main


@pytest.mark.slow  # the benchmark's other framework, below, prints the same table
@pytest.mark.skipif(jax.default_backend() == "gpu", reason="the CPU's table")
def test_the_cpu_table():
    figures = attention.measure(framework="jax", lengths=[64], widths=[64], repeats=1)
    timed = {(r["case"], r["implementation"]) for r in figures["results"] if "ratio" in r}
    both = {(case, name) for case in (benchmark.FORWARD, benchmark.TRAINED) for name in ("plain", "chunked", "xla")}
    others = {("forward, LogLinear per head", "chunked"), ("forward, EntropyTarget(1.0)", "chunked")}
    others |= {("plain, other policies", "plain")}
    assert timed == both | others | {(benchmark.STATISTICS, name) for name in ("chunked", "xla")}
    assert set(figures["refused"]) == {"stock", "pallas", "hybrid"}
    assert figures["results"][0]["ratio"] == figures["results"][0]["wall_ratio"] == 1.0
    memory = {r["length"]: r["megabytes"] for r in figures["results"] if r["case"] == "memory of one sequence, forward"}
    assert 0 < memory[4096] < 8 * memory[1024]
    attention.show(figures)


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="the CPU's table")
def test_it_is_the_attention_benchmark_s_other_framework(capsys, monkeypatch, tmp_path):
    command = "bench attention --framework jax --only ours --lengths 32 --widths 16 --repeats 1"
    assert main(command.split()) == 0
    assert "chunked" in capsys.readouterr().out
    monkeypatch.setattr(benchmark, "CPU_LENGTHS_OF_MEMORY", (32,))
    assert main(f"bench attention --framework jax --only memory --widths 16 --json {tmp_path}/memory.json".split()) == 0
    assert "nothing to draw" in capsys.readouterr().out


def test_threads_which_it_cannot_set_are_refused():
    with pytest.raises(ValueError, match="threads are of PyTorch"):
        attention.measure(framework="jax", threads=1)


@pytest.mark.parametrize("case", [benchmark.FORWARD, benchmark.TRAINED, benchmark.STATISTICS])
def test_a_wrong_result_is_not_timed(case):
    inputs = benchmark._drawn((1, 70, 1, 16), 0)
    call = benchmark._contestants(inputs, {})[case, "xla"]
    exact, right = Exact(inputs), call(*inputs[: 4 if case == benchmark.TRAINED else 3])
    assert exact.error(case, "xla", right) < 0.05
    with pytest.raises(ArithmeticError, match="not timed"):
        exact.error(case, "xla", jax.tree.map(lambda x: x * 1.2, right))


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="the CPU's table")
def test_other_policies_have_their_rows_beside_plain():
    figures = attention.measure(framework="jax", only=["policies"], lengths=[32], widths=[16], repeats=1)
    ratios = {r["case"]: r.get("ratio") for r in figures["results"]}
    assert list(ratios) == [benchmark.PLAIN_BESIDE, "forward, LogLinear per head", "forward, EntropyTarget(1.0)"]
    assert ratios[benchmark.PLAIN_BESIDE] == 1.0
    assert all(ratios.values()), figures["results"]
    attention.show(figures)


@pytest.mark.parametrize("case", benchmark.POLICIES)
def test_a_result_of_another_policy_is_judged_by_its_own_numbers(case):
    inputs = benchmark._drawn((1, 70, 3, 16), 0)
    ((_, call),) = [item for item in benchmark._by_policy(inputs, {}).items() if item[0][0] == case]
    exact, right = Exact(inputs), jax.jit(call)(*inputs[:3])
    assert exact.error(case, "chunked", right) < 0.05
    for wrong in (right * 1.2, right[:, :, ::-1], benchmark._plain(*inputs[:3])):
        with pytest.raises(ArithmeticError, match="not timed"):
            exact.error(case, "chunked", wrong)


@pytest.mark.slow
def test_what_fails_says_so_in_its_row_and_the_others_are_timed():
    shape = (1, 32, 1, 16)
    inputs = benchmark._drawn(shape, 0)
    calls = benchmark._contestants(inputs, {})
    calls[benchmark.FORWARD, "xla"] = lambda q, k, v: 2 * v
    calls[benchmark.STATISTICS, "xla"] = lambda q, k, v: q @ v
    rows = benchmark._in_turns(shape, benchmark._compiled(shape, calls), inputs, 1)
    failed = {(r["case"], r["implementation"]) for r in rows if "failed" in r}
    assert failed == {(benchmark.FORWARD, "xla"), (benchmark.STATISTICS, "xla")}
    assert all("ratio" in r for r in rows if "failed" not in r)
    assert len(attention.wrong({"results": rows})) == 2
