"""Fine-tuning: it learns, every policy trains, and a run that was killed ends as if it had not been."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from sharpmax.core.cards import load_policy
from sharpmax.core.policies import PerLayer
from sharpmax.hf import sharpen
from sharpmax.hf.finetune.alone import alone_in
from sharpmax.hf.finetune.answer_batches import at_random_positions
from sharpmax.hf.finetune.lora import with_lora
from sharpmax.hf.finetune.train import WHOLE, Recipe, finetune, newest_whole
from sharpmax.hf.finetune.trained_policy import NAMES, learned_parameters, policy_named
from sharpmax.hf.models.gemma import gemma
from tests.hf.finetune.test_answer_batches import examples
from tests.marks import slow

pytestmark = pytest.mark.filterwarnings("ignore")  # of the Trainer, on itself

RECIPE = Recipe(steps=6, tokens=1024, learning_rate=3e-3, policy_rate=0.05, save_every=2, log_every=1)


def learnable(count):
    """Random questions with one answer to all."""
    made = examples(count)
    for example in made:
        example.ids[example.start :] = 7
    return made


def run(folder, policy="none", recipe=RECIPE, report=lambda line: None):
    model = gemma("gemma-tiny").model
    chosen = policy_named(policy, model)
    return model, chosen, finetune(model, learnable(200), recipe, policy=chosen, folder=folder, report=report)


@pytest.mark.parametrize("policy", NAMES)
def test_it_learns_with_every_policy_and_says_how_it_goes(policy, tmp_path):
    lines = []
    model, chosen, done = run(tmp_path, policy, report=lines.append)
    assert done.losses[-1][1] < done.losses[0][1]
    assert done.tokens_per_second > 0
    assert "step 6 of 6" in lines[-1]
    assert "left" in lines[-1]
    assert not any("sharpmax" in name for name in (*model.state_dict(), *model.__dict__))
    assert model.config._attn_implementation == "sdpa"
    if policy in ("ssmax", "learn"):
        assert isinstance(chosen, PerLayer)
        field, start = ("slope", 1 / torch.log(torch.tensor(256.0))) if policy == "ssmax" else ("a", 0.0)
        assert all((getattr(layer, field) - start).abs().min() > 0 for layer in chosen.policies)


def test_policies_are_in_the_training_not_only_beside_it(tmp_path):
    """The same data in the same order: other weights come of another policy."""
    weights = [run(tmp_path / name, name)[0].state_dict() for name in ("none", "paper", "none")]
    assert all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])
    assert not all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize("policy", ["ssmax", "learn"])
def test_a_policy_that_learns_is_refused_under_fsdp_before_any_work(policy, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")  # as `accelerate launch --use_fsdp` does
    with pytest.raises(NotImplementedError, match="FSDP"):
        run(tmp_path / "training", policy)
    assert not (tmp_path / "training").exists()


@pytest.mark.parametrize("lora", [0, 2])
@pytest.mark.parametrize("policy", NAMES)
def test_half_precision_is_on_every_time_a_model_is_trained(policy, lora, tmp_path):
    inner = gemma("gemma-tiny").model
    model = with_lora(inner, lora, seed=0) if lora else inner
    recipe = Recipe(steps=1, tokens=1024, bf16=True, save_every=0)
    seen = []
    inner.model.layers[0].mlp.register_forward_hook(
        lambda *_: seen.append(torch.is_autocast_enabled("cpu")) if inner.training and torch.is_grad_enabled() else None
    )
    for turn in ("first", "second"):
        chosen = policy_named(policy, inner)
        finetune(model, learnable(20), recipe, policy=chosen, folder=tmp_path / turn, report=lambda _: None)
    assert seen == [True, True]


def test_a_card_is_a_policy_too_and_nonsense_is_refused(tmp_path):
    _, learned, _ = run(tmp_path / "first", "learn")
    card = tmp_path / "first" / "checkpoint-6" / "sharpmax.json"
    loaded = policy_named(card, gemma("gemma-tiny").model)
    assert loaded == load_policy(card) == learned.freeze()
    with pytest.raises(ValueError, match="none, paper, ssmax, learn"):
        policy_named("sharper", gemma("gemma-tiny").model)


def test_a_checkpoint_loads_as_a_model_with_its_card(tmp_path):
    import transformers

    model, chosen, _ = run(tmp_path, "learn")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-6")
    ids = torch.arange(20)[None]
    with torch.no_grad(), sharpen(model, chosen), sharpen(again, tmp_path / "checkpoint-6"):
        torch.testing.assert_close(again(ids).logits, model(ids).logits)


@pytest.mark.parametrize("lora", [0, *slow(2)])
def test_a_broken_checkpoint_is_passed_by_and_the_run_ends_the_same(lora, tmp_path):
    """As if killed while writing step 6: what is there of it is not trusted, and step 4 serves."""

    def model():
        return gemma("gemma-tiny").model

    def trained(folder):
        inner = model()
        chosen = policy_named("learn", inner)
        outer = with_lora(inner, lora, seed=0) if lora else inner
        finetune(outer, learnable(200), RECIPE, policy=chosen, folder=folder, report=lambda _: None)
        return outer.state_dict(), chosen

    whole, learned = trained(tmp_path / "whole")
    again = tmp_path / "again"
    trained(again)
    (again / "checkpoint-6" / WHOLE).unlink()
    assert newest_whole(again) == str(again / "checkpoint-4")
    assert not (again / "checkpoint-6").exists()
    weights, learned_again = trained(again)
    assert learned_again.freeze() == learned.freeze()
    assert all(torch.equal(whole[name], weights[name]) for name in whole)


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt", "trainer_state.json"])
def test_a_checkpoint_that_lost_part_of_a_file_is_not_whole(file, tmp_path):
    run(tmp_path)
    cut = tmp_path / "checkpoint-6" / file
    cut.write_bytes(cut.read_bytes()[:100])
    (tmp_path / "checkpoint-by-hand").mkdir()
    assert newest_whole(tmp_path) == str(tmp_path / "checkpoint-4")
    assert not (tmp_path / "checkpoint-6").exists()


def test_one_process_of_several_removes_what_is_broken(tmp_path, monkeypatch):
    (tmp_path / "checkpoint-2").mkdir()
    monkeypatch.setenv("RANK", "1")
    assert newest_whole(tmp_path) is None
    assert (tmp_path / "checkpoint-2").exists()
    monkeypatch.setenv("RANK", "0")
    assert newest_whole(tmp_path) is None
    assert not (tmp_path / "checkpoint-2").exists()


def test_the_word_that_a_checkpoint_is_whole_comes_after_every_process_has_written(tmp_path, monkeypatch):
    def everyone(_):
        assert [path for path in tmp_path.glob("checkpoint-*") if not (path / WHOLE).exists()]
        waited.append(1)

    waited = []
    monkeypatch.setattr("accelerate.Accelerator.wait_for_everyone", everyone)
    monkeypatch.setattr("transformers.Trainer.is_world_process_zero", lambda _: False)
    run(tmp_path)
    assert waited
    assert not list(tmp_path.rglob(WHOLE))  # it is the first process that says it


def test_two_runs_in_one_folder_at_once_are_refused(tmp_path):
    """Also of one process, since a lock is of an open file; and the first goes on undisturbed."""
    with alone_in(tmp_path), pytest.raises(ValueError, match="another process trains in"):
        run(tmp_path)
    assert not list(tmp_path.glob("checkpoint-*"))
    run(tmp_path)
    assert newest_whole(tmp_path)


def test_a_loss_that_is_no_number_ends_the_training(tmp_path):
    with pytest.raises(ValueError, match="lower learning rate"):
        run(tmp_path, recipe=Recipe(steps=6, tokens=1024, learning_rate=1e30, save_every=0, log_every=1))


def test_checkpoints_of_another_run_are_not_continued(tmp_path):
    run(tmp_path, "paper", replace(RECIPE, steps=2))
    for policy, recipe, what in (
        ("paper", replace(RECIPE, steps=4), "steps"),
        ("none", replace(RECIPE, steps=2), "policy"),
        ("none", replace(RECIPE, steps=2, learning_rate=1e-3), "learning_rate, policy"),
    ):
        with pytest.raises(ValueError, match=f"checkpoints of a run with another {what}: it cannot be continued"):
            run(tmp_path, policy, recipe)
    model, recipe = gemma("gemma-tiny").model, replace(RECIPE, steps=2)
    with pytest.raises(ValueError, match="another examples: "):
        finetune(model, learnable(199), recipe, policy=policy_named("paper", model), folder=tmp_path)
    placed = at_random_positions(learnable(200), 100, seed=0)
    with pytest.raises(ValueError, match="another examples: "):
        finetune(model, placed, recipe, policy=policy_named("paper", model), folder=tmp_path)
    told = []
    run(tmp_path, "paper", replace(RECIPE, steps=2, log_every=2), report=told.append)  # which decides no number
    assert told == [f"going on from {tmp_path / 'checkpoint-2'}, with its weights"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("learning_rate", float("inf")), ("policy_rate", -1), ("policy_rate", float("nan")), ("seed", -1)],
)
def test_a_recipe_that_cannot_be_is_refused(field, value):
    with pytest.raises(ValueError, match=field):
        Recipe(**{field: value})


def test_a_missing_tensorboard_is_named_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    model = gemma("gemma-tiny").model
    with pytest.raises(ImportError, match="pip install tensorboard"):
        finetune(model, learnable(5), RECIPE, folder=tmp_path / "training", tensorboard=True)
    assert not (tmp_path / "training").exists()


def test_lora_trains_itself_and_the_policy_alone(tmp_path):
    model = gemma("gemma-tiny").model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    chosen = policy_named("learn", model)
    adapted = with_lora(model, 2, seed=0)
    assert all(parameter.requires_grad for parameter in learned_parameters(adapted))
    finetune(adapted, learnable(200), RECIPE, policy=chosen, folder=tmp_path, report=lambda _: None)
    after = {name.replace("base_layer.", ""): tensor for name, tensor in adapted.get_base_model().state_dict().items()}
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert any(tensor.abs().max() > 0 for name, tensor in after.items() if "lora_B" in name)
    assert chosen.policies[0].a.abs().min() > 0


def test_tensorboard_gets_the_loss(tmp_path):
    model = gemma("gemma-tiny").model
    finetune(model, learnable(50), RECIPE, folder=tmp_path, tensorboard=True, report=lambda _: None)
    assert list(tmp_path.rglob("events.out.tfevents*"))


LONGER = Recipe(steps=30, tokens=1024, learning_rate=3e-3, policy_rate=0.05, save_every=4, log_every=1)
KILLED = """
import sys, torch
torch.set_num_threads(1)
from tests.hf.finetune.test_train import LONGER, run
run(sys.argv[1], "learn", LONGER, report=None)
"""


@pytest.mark.slow  # two processes and three trainings; a broken checkpoint, above, is the same within one process
def test_a_run_killed_in_the_middle_ends_with_the_same_metrics(tmp_path):
    """kill -9 between two checkpoints, then the same command: the same losses, step for step, and the same weights."""
    from safetensors.torch import load_file

    def start(folder):
        return subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], stderr=subprocess.PIPE, text=True)

    killed = start(tmp_path / "killed")
    for line in killed.stderr:
        if line.startswith("step 15 "):
            killed.kill()
            break
    assert killed.wait() == -9
    assert newest_whole(tmp_path / "killed").endswith(("checkpoint-12", "checkpoint-8"))
    second = start(tmp_path / "killed")
    seen = [line for line in second.stderr if line.startswith("step ")]
    assert second.wait() == 0
    assert not [line for line in seen if line.startswith("step 5 ")]  # it went on; it did not begin again
    run(tmp_path / "whole", "learn", LONGER)

    def ended(folder):
        state = json.loads((folder / "checkpoint-30" / "trainer_state.json").read_text())
        losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
        last = folder / "checkpoint-30"
        return losses, load_file(last / "model.safetensors"), load_policy(last / "sharpmax.json")

    (losses, weights, policy), (again, weights_again, policy_again) = (ended(tmp_path / n) for n in ("whole", "killed"))
    assert losses == again
    assert len(losses) == 30
    assert policy == policy_again
    assert all(torch.equal(weights[name], weights_again[name]) for name in weights)
