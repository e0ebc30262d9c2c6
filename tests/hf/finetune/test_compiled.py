"""Compiled blocks: the same losses under every policy, compiled once for all of them, and gone afterwards."""

from functools import partial

import pytest
import torch._dynamo

from sharpmax.hf.finetune import train as module
from sharpmax.hf.finetune.compiled import compiled
from sharpmax.hf.finetune.train import Recipe, finetune
from sharpmax.hf.finetune.trained_policy import NAMES, policy_named
from sharpmax.hf.models.gemma import gemma
from tests.hf.finetune.test_train import learnable

pytestmark = pytest.mark.filterwarnings("ignore")  # of the Trainer and the compiler, on themselves


def losses(policy, folder, **options):
    model = gemma("gemma-tiny").model
    recipe = Recipe(steps=4, tokens=1024, learning_rate=3e-3, save_every=0, log_every=1, **options)
    done = finetune(
        model, learnable(200), recipe, policy=policy_named(policy, model), folder=folder, report=lambda _: None
    )
    assert not any(block._compiled_call_impl for block in model.model.layers)
    return [loss for _, loss in done.losses]


@pytest.mark.parametrize("bf16", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_losses_agree_and_one_compilation_serves_layers_steps_and_policies(bf16, tmp_path, monkeypatch):
    """Through autograd's graphs; the compiler's own kernels take a minute to build on a processor."""
    monkeypatch.setattr(module, "compiled", partial(compiled, backend="aot_eager"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    graphs = []
    for policy in NAMES:
        plain = losses(policy, tmp_path / f"{policy}-as-it-is", bf16=bf16)
        assert losses(policy, tmp_path / f"{policy}-compiled", bf16=bf16, compile=True) == pytest.approx(
            plain, rel=1e-3
        )
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs == [4] * len(NAMES)  # norm; projections; what follows attention; the rest of the block
