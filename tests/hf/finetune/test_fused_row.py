"""A packed row in one call of fused kernels gives the losses and gradients of its batches, and falls back to them.

On a CPU by Triton's interpreter, where the fused road serves only when 'hybrid' is named; on a GPU by itself.
"""

import math
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch

import sharpmax
from sharpmax.hf import sharpen
from sharpmax.hf.finetune import fused_row, packing
from sharpmax.hf.finetune.answer_batches import Encoded, pack
from sharpmax.hf.finetune.answer_model import answering
from sharpmax.torch import watch
from tests.hf.families import VOCABULARY, build
from tests.torch.kernels import DEVICE, needs_triton

pytestmark = needs_triton
SLOWLY = pytest.param(sharpmax.PAPER, marks=pytest.mark.slow, id="paper")  # its statistics, as Python, too
SHARPER = 3
"""A random model attends evenly; logits so much sharper make every masking mistake show."""


def examples(sizes=(9, 3, 40, 17, 5)):
    draws = np.random.default_rng(0)
    return [Encoded(draws.integers(3, VOCABULARY, size=n).astype(np.int32), n // 2) for n in sizes]


def model(family="llama", dtype=torch.float16):
    made = build(family, max_position_embeddings=64)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                weight *= SHARPER
    made.set_attn_implementation("eager" if family in ("gemma2", "gpt_oss") else "sdpa")
    return made.to(DEVICE, torch.float16).to(dtype)  # rounded alike, whatever it computes in


def step(model, policy, implementation="hybrid"):
    """Return the loss of one packed row and its gradients, in float64."""
    asked = examples()
    row = pack(asked, range(len(asked)), width=96, of=len(asked))
    row = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in row.items()}
    model.zero_grad()
    with sharpen(model, policy, implementation=implementation) if policy else nullcontext(), answering(model):
        loss = model(**row)["loss"]
    (64 * loss).backward()  # small gradients would be lost to float16
    return loss.detach().double(), torch.cat([p.grad.double().flatten() for p in model.parameters()]) / 64


def followed(monkeypatch):
    """Return the list that every layer's road is added to; the plain road is told that the interpreter will do."""
    roads = []

    def attend(*arguments):
        output = fused_row.attend_fused(*arguments)
        roads.append("batches" if output is None else "one call")
        return output

    monkeypatch.setattr(packing, "attend_fused", attend)
    named = partial(fused_row.packed_request, implementation="hybrid")
    plain = fused_row.packed_request
    monkeypatch.setattr(
        fused_row, "packed_request", lambda *a, **k: (plain if "implementation" in k else named)(*a, **k)
    )
    return roads


@pytest.mark.parametrize(
    "policy",
    [pytest.param(None, id="plain"), SLOWLY, pytest.param(sharpmax.LengthScaled.ssmax(0.43), id="by length")],
)
def test_one_call_a_layer_errs_no_more_than_its_batches(policy, monkeypatch):
    exact_loss, exact = step(model(dtype=torch.float64), policy, implementation=None)
    roads = followed(monkeypatch)
    loss, gradients = step(model(), policy)
    assert roads == ["one call"] * 2
    monkeypatch.setattr(packing, "attend_fused", lambda *_: None)
    batched_loss, batched = step(model(), policy)
    rounding = torch.finfo(torch.float16).eps
    assert (loss - exact_loss).abs() <= 2 * (batched_loss - exact_loss).abs() + rounding * exact_loss
    assert (gradients - exact).norm() <= 2 * (batched - exact).norm()
    assert (batched - exact).norm() < 0.05 * exact.norm()


def test_a_watched_row_goes_the_plain_way_and_is_counted_once(monkeypatch):
    plain_roads = followed(monkeypatch)
    plain, _ = step(model(), None)
    made = model().train()
    with watch(made) as watched:
        seen, _ = step(made, None)
        assert watched.read().rows.tolist() == [96] * 8
        watched.step()
        watched.gauge.measuring = False
        step(made, None)
        assert watched.read().rows.tolist() == [0] * 8
    assert plain_roads == ["one call"] * 6
    assert torch.equal(seen, plain)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("llama", torch.float32),  # PyTorch's kernels for packed rows are of half precision
        ("mistral", torch.float16),  # a window shorter than the longest example
        ("gemma2", torch.float16),  # softcap, by eager attention
        ("gpt_oss", torch.float32),  # sinks: an option that is a tensor
    ],
)
def test_what_the_kernels_cannot_do_goes_in_batches(family, dtype, monkeypatch):
    roads = followed(monkeypatch)
    step(model(family, dtype), None)
    assert roads == ["batches"] * 2


@pytest.mark.parametrize("policy", [pytest.param(None, id="plain"), SLOWLY])
def test_a_window_that_hides_nothing_is_none(policy, monkeypatch):
    """Longer than every example, though not than the row."""
    roads = followed(monkeypatch)
    made = model("mistral")
    for layer in made.model.layers:
        layer.self_attn.config.sliding_window = 64
    step(made, policy)
    assert roads == ["one call"] * 2


def test_an_observer_sees_every_layer_s_row_once_and_the_watch_its_documents(monkeypatch):
    roads = followed(monkeypatch)
    made, seen, entropies = model(), [], []

    def observer(layer, stats):
        seen.append((layer, tuple(stats.entropy.shape), stats.count.max().item()))
        entropies.append(stats.entropy.max().item())

    asked = examples()
    row = pack(asked, range(len(asked)), width=96, of=len(asked))
    row = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in row.items()}
    # It leaves rows above 4/3 nats alone, and of those the block notes the highest entropy.
    silent = sharpmax.Polynomial((-1.5, 3.0), threshold=0.5)
    on = sharpen(made, silent, implementation="hybrid", observer=observer)

    def run():
        with on, answering(made), torch.no_grad():
            made(**row)

    with pytest.warns(sharpmax.SilentPolicyWarning):
        run()
    highest = on._run.highest_entropy
    assert roads == ["one call"] * 2
    assert seen == [(0, (1, 4, 96), 40.0), (1, (1, 4, 96), 40.0)]
    assert highest == pytest.approx(max(entropies), rel=1e-5)
    assert highest < math.log(40)
