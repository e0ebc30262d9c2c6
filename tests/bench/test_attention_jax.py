"""The JAX attention benchmark checks before it times, says what it timed, and why the rest refused."""

import jax
import jax.numpy as jnp
import pytest

from sharpmax.bench import attention
from sharpmax.bench import attention_jax as benchmark
from sharpmax.cli import main


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="the CPU's table")
def test_the_cpu_table():
    figures = benchmark.measure(lengths=[64], widths=[64], repeats=1)
    timed = {(r["case"], r["implementation"]) for r in figures["results"]}
    both = {(case, name) for case in (benchmark.FORWARD, benchmark.TRAINED) for name in ("plain", "chunked", "xla")}
    assert timed == both | {(benchmark.STATISTICS, name) for name in ("chunked", "xla")}
    assert set(figures["refused"]) == {"stock", "pallas", "pallas_cudnn"}
    assert figures["results"][0]["ratio"] == 1.0
    benchmark.show(figures)


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="the CPU's table")
def test_it_is_the_attention_benchmark_s_other_framework(capsys):
    assert (
        main(["bench", "attention", "--framework", "jax", "--lengths", "32", "--widths", "16", "--repeats", "1"]) == 0
    )
    assert "chunked" in capsys.readouterr().out
    with pytest.raises(ValueError, match="torch or jax"):
        attention.measure(framework="numpy")


@pytest.mark.parametrize("case", [benchmark.FORWARD, benchmark.TRAINED, benchmark.STATISTICS])
def test_a_wrong_result_is_not_timed(case):
    inputs = tuple(jax.random.normal(jax.random.key(i), (1, 70, 1, 16), jnp.bfloat16) for i in range(4))
    right = {key: call(*inputs[: 4 if case == benchmark.TRAINED else 3])
             for key, call in benchmark._contestants(inputs, {}).items() if key == (case, "xla")}  # fmt: skip
    assert benchmark._judged(case, "xla", right[case, "xla"], inputs) < 0.05
    wrong = jax.tree.map(lambda x: x * 1.2, right[case, "xla"])
    with pytest.raises(ArithmeticError, match="nothing was timed"):
        benchmark._judged(case, "xla", wrong, inputs)


def test_sizes_below_1_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        benchmark.measure(repeats=0)
