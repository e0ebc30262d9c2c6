"""Training: each seed is alone, a killed run ends the same, the optimiser is AdamW, and precision only rounds."""

from dataclasses import replace
from math import isfinite

import pytest
import torch

from sharpmax import PAPER
from sharpmax.experiments.compare import train as training
from sharpmax.experiments.compare.exam import examine, held_out_loss
from sharpmax.experiments.compare.train import Hardware, Recipe, State, train_seeds
from sharpmax.models.mechanisms import Sharpened
from sharpmax.models.transformer import Transformer
from sharpmax.tasks.recall import Recall


class Short(Recall):
    trained = (4, 5)


MODEL = Transformer(Short.vocabulary, 1, 16, 2, mechanism=Sharpened(PAPER))
RECIPE = Recipe(steps=5, batch=3)


def trained(folder, seeds=(0, 1), recipe=RECIPE, **options):
    return train_seeds(MODEL, Short(), recipe, list(seeds), folder, hardware=Hardware(), **options)


def test_seeds_side_by_side_are_what_each_is_alone(tmp_path):
    together = trained(tmp_path / "both")
    for index in (0, 1):
        torch.testing.assert_close(together[index], trained(tmp_path / str(index), [index])[0])


def test_a_killed_training_continues_to_the_same_numbers(tmp_path, monkeypatch):
    whole = trained(tmp_path / "whole")
    monkeypatch.setattr(training, "SAVE_EVERY", 1)
    update, made = training._update, []

    def killed(*arguments):
        made.append(1)
        if len(made) == 3:
            raise KeyboardInterrupt
        update(*arguments)

    monkeypatch.setattr(training, "_update", killed)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "killed")
    assert torch.equal(trained(tmp_path / "killed"), whole)
    assert len(made) == 3 + 3  # two steps were kept
    assert torch.equal(trained(tmp_path / "killed"), whole)
    assert len(made) == 6  # a finished training is read back


def test_the_optimiser_is_adamw_with_each_seeds_gradient_clipped():
    generator = torch.Generator().manual_seed(0)
    params = torch.randn(2, 7, generator=generator)
    state = State(params.clone(), torch.zeros(2, 7), torch.zeros(2, 7))
    theirs = [row.clone().requires_grad_() for row in params]
    reference = torch.optim.AdamW(
        [{"params": [row], "lr": rate} for row, rate in zip(theirs, (0.1, 0.02), strict=False)], weight_decay=0.3
    )
    for step in range(4):
        gradient = torch.randn(2, 7, generator=generator) * torch.tensor([[9.0], [0.01]])
        _, *corrections = training._schedule(step, 4)
        training._update(state, gradient, torch.tensor([[0.1], [0.02]]), 0.3, *map(torch.tensor, corrections))
        for row, its in zip(theirs, gradient, strict=True):
            row.grad = its.clone()
            torch.nn.utils.clip_grad_norm_([row], training.CLIP)
        reference.step()
    torch.testing.assert_close(state.params, torch.stack([row.detach() for row in theirs]))


def test_random_positions_are_trained_and_asked(tmp_path):
    model = replace(MODEL, positions="rope")
    params = train_seeds(model, Short(), RECIPE, [0, 1], tmp_path, hardware=Hardware())
    found = examine(model, Short(), params, 9, 3, hardware=Hardware())
    assert len(found["right"]) == 2
    assert all(map(isfinite, held_out_loss(model, Short(), params, hardware=Hardware(), batch=4)))


def test_a_rate_per_seed_is_what_the_recipe_would_do(tmp_path):
    both = trained(tmp_path / "both", [3, 3], rates=[1e-3, 1e-2])
    for index, rate in enumerate((1e-3, 1e-2)):
        alone = trained(tmp_path / str(rate), [3], Recipe(steps=5, batch=3, learning_rate=rate))
        torch.testing.assert_close(both[index], alone[0])


def test_the_schedule_rises_then_falls_to_0():
    shares = [training._schedule(step, 100)[0] for step in range(100)]
    assert shares[4] == 1.0
    assert shares[:5] == sorted(shares[:5])
    assert shares[4:] == sorted(shares[4:], reverse=True)
    assert shares[-1] < 1e-3


def test_every_batch_has_one_shape_and_is_of_its_step_alone():
    device = torch.device("cpu")
    batches = dict(training._batches(Short(), Recipe(40, 3), [0, 1], device, 0))
    assert {batch.tokens.shape for batch in batches.values()} == {(2, 3, 80)}  # 37 tokens, padded as every task is
    later = dict(training._batches(Short(), Recipe(40, 3), [0, 1], device, 35))
    assert sorted(later) == [35, 36, 37, 38, 39]
    assert all(torch.equal(later[step].tokens, batches[step].tokens) for step in later)


def test_hardware_of_a_device():
    assert Hardware.of("cuda") == Hardware("cuda", "bf16", "tf32", True)
    assert Hardware.of("cpu") == Hardware("cpu", "float32", "float32", False)
    assert Hardware.of("cuda", "float32", False) == Hardware("cuda", "float32", "float32", False)
    with pytest.raises(ValueError, match="expected a precision among float32, tf32, bf16, got 'fp8'"):
        Hardware.of("cpu", "fp8")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler, on itself
def test_compiled_bfloat16_learns_the_same(tmp_path):
    plain = trained(tmp_path / "plain")
    folder = tmp_path / "fast"
    hardware = Hardware("cpu", "bf16", "float32", True)
    fast = train_seeds(MODEL, Short(), RECIPE, [0, 1], folder, hardware=hardware)
    moved = (plain - MODEL.init([0, 1])).norm()
    assert (fast - plain).norm() < 0.2 * moved


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_two_seeds_and_steps_draw_the_same(device):
    """A CPU's generator looks at 32 bits of its seed."""
    drawings = {
        training._drawing(seed, start, torch.device(device)) for seed in range(20) for start in range(0, 5000, 50)
    }
    looked_at = {drawing % 2**32 for drawing in drawings} if device == "cpu" else drawings
    assert len(looked_at) == 20 * 100
