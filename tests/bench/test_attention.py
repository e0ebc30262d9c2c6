"""The attention benchmark checks before it times, and says what it timed."""

import pytest
import torch

from sharpmax.bench import attention as benchmark
from sharpmax.bench.attention_inputs import KINDS, draw


@pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU's table")
def test_the_cpu_table(monkeypatch):
    monkeypatch.setattr(benchmark, "_cpu_memory", lambda length: benchmark._entry("m", length, 64, "c", megabytes=1.0))
    figures = benchmark.measure(lengths=[64], widths=[64], repeats=1)
    assert [r["implementation"] for r in figures["results"][:3]] == ["plain", "stock", "chunked"]
    assert figures["results"][0]["ratio"] == 1.0
    benchmark.show(figures)


def test_sizes_below_1_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        benchmark.measure(repeats=0)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_are_what_they_say(kind):
    q, k, v = draw(kind, length=2048, width=64, tokens=2048, features=64, dtype=torch.float32, device="cpu", seed=0)
    assert q.shape == k.shape == v.shape == (1, 1, 2048, 64)
    logits = q[0, 0, -8:] @ k[0, 0].T / 8
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    sharpened = (entropy > 0.849) & (entropy < 5.945)
    assert sharpened.all() if kind == "sharpened" else not sharpened[entropy < 0.849].any()
    with pytest.raises(ValueError, match="kind must be"):
        draw("other", length=8, width=8, tokens=8, features=8, dtype=torch.float32, device="cpu", seed=0)
