"""`sharpmax finetune`: from a name to a fine-tuned model with its card, on real data; one process or two."""

import json
import os
import shlex
import subprocess
import sys
import warnings

import pytest
import torch

import sharpmax
from sharpmax.cli import main
from sharpmax.commands.finetune import finetune_model, print_finetuned
from sharpmax.core.cards import Card
from sharpmax.hf import load, sharpen
from sharpmax.hf.models.gemma import SIZES, gemma
from sharpmax.hf.models.load_to_train import load_by_name
from sharpmax.hf.sharpen.sidecar import OtherModelWarning

DATA = ["--algorithms", "minimum", "bfs", "--train-lengths", "4", "5", "--test-lengths", "4", "6"]
SMALL = [*DATA, "--examples", "64", "--test-samples", "1", "--steps", "4", "--tokens", "1024", "--device", "cpu"]

pytestmark = pytest.mark.filterwarnings("ignore")  # of the Trainer, on itself


def test_a_fine_tuned_model_comes_back_with_its_card(tmp_path, capsys):
    assert main(["finetune", "gemma-tiny", "--policy", "learn", "--out", str(tmp_path), *SMALL]) == 0
    said = capsys.readouterr()
    assert "exact answers" in said.out
    assert "step 4 of 4" in said.err
    (folder,) = (tmp_path / "finetune").iterdir()
    metrics = json.loads((folder / "metrics.json").read_text())
    assert set(metrics["by_length"]) == {"4", "6"}
    assert metrics["config"]["policy"] == "learn"
    again = load(str(folder / "model"))
    assert again.tokens("minimum:\n").shape == (1, 9)
    with torch.no_grad(), sharpen(again.model, folder / "model") as sharpened:
        again.model(torch.arange(10)[None])
        assert sharpened.calls == 2


def test_gemma_2b_by_name_is_the_same_command_up_to_the_weights(tmp_path):
    """A folder as google/gemma-2b would be, with a tiny configuration and a tokenizer of its own: load, train, keep."""
    loaded = gemma("gemma-tiny")
    folder = tmp_path / "my models" / "gemma 2b"
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    found = load_by_name(str(folder), seed=0, device="cpu")
    config = found.model.config
    assert type(found.model).__name__ == "GemmaForCausalLM"
    assert (config.num_key_value_heads, config.hidden_act) == (1, "gelu_pytorch_tanh")
    assert main(["finetune", str(folder), "--policy", "paper", "--out", str(tmp_path), *SMALL]) == 0


def test_the_gemma_sizes_are_the_papers_architecture():
    for name, size in SIZES.items():
        config = gemma(name).model.config if name != "gemma-small" else None
        assert size.config["head_dim"] in (32, 256)
        if config is not None:
            assert config.num_key_value_heads == 1
            assert config.tie_word_embeddings
            assert (getattr(config, "attn_logit_softcapping", None) is not None) == (size.version == 2)


@pytest.mark.parametrize("changes", [{"lora": 2}, {"at_once": 512}], ids=["lora", "in-parts"])
def test_lora_and_steps_in_parts(changes, tmp_path):
    data = {"algorithms": ("minimum",), "train_lengths": (4,), "test_lengths": (4,), "examples": 32, "test_samples": 1}
    found = finetune_model(
        "gemma-tiny", policy="paper", steps=2, tokens=1024, out=tmp_path, device="cpu", **data, **changes
    )
    assert found["by_length"]["4"]["examples"] == 5
    assert "lora" not in changes or list((tmp_path / "finetune").rglob("adapter_model.safetensors"))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["gemma-tiny", "--task", "chess"], "chess"),
        (["gemma-tiny", "--policy", "sharper"], "sharper"),
        (["minilm"], "not a causal"),
        (["no such model"], "gemma-tiny, gemma-small, gemma2-tiny"),
        (["--steps", "0", "gemma-tiny"], "steps"),
        (["--device", "mars", "gemma-tiny"], "cannot run on the device 'mars'"),
        (["--policy", "", "gemma-tiny"], "or a card, got ''"),
    ],
)
def test_what_cannot_be_is_one_line(arguments, word, tmp_path, capsys):
    assert main(["finetune", "--out", str(tmp_path), *SMALL, *arguments]) == 2
    assert word in capsys.readouterr().err


def test_a_finished_run_that_was_moved_tells_where_it_is_now(tmp_path, capsys):
    little = [*SMALL, "--steps", "1", "--tokens", "512", "--quiet"]
    assert main(["finetune", "gemma-tiny", "--out", str(tmp_path / "before"), *little]) == 0
    (tmp_path / "before").rename(tmp_path / "my runs")
    capsys.readouterr()
    assert main(["finetune", "gemma-tiny", "--out", str(tmp_path / "my runs"), *little]) == 0
    where, following = capsys.readouterr().out.splitlines()[-2:]
    model = tmp_path / "my runs" / "finetune" / "gemma-tiny-clrs-text-none-seed0" / "model"
    assert where == f"model: {model}"
    assert shlex.split(following, comments=True) == ["next:", "sharpmax", "diagnose", str(model)]


def test_an_adapter_alone_is_not_sent_to_a_verb_that_refuses_it(tmp_path, capsys):
    (tmp_path / "adapter_config.json").touch()
    print_finetuned({"by_length": {}, "model": str(tmp_path)})
    assert "next: peft.PeftModel.from_pretrained" in capsys.readouterr().out


def test_what_was_refused_bars_nothing_and_what_is_finished_is_read_back(tmp_path, capsys):
    command = ["finetune", "gemma-tiny", "--out", str(tmp_path), *SMALL]
    card = tmp_path / "card.json"
    sharpmax.PerLayer((sharpmax.Constant(1.1),) * 7).save(card)
    wrongs = (
        [word.replace("minimum", "minimun") for word in command],
        [*command, "--tokens", "64"],
        [*command, "--seed", "-1"],
        [*command, "--lora", "-1"],
        [*command, "--policy", str(card)],
    )
    for wrong in wrongs:
        assert main(wrong) == 2
    assert "holds 7 layers" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [card]
    assert main(command) == 0
    (file,) = (tmp_path / "finetune").glob("*/metrics.json")
    before = file.read_text()
    said = capsys.readouterr().out
    assert main(command) == 0
    assert file.read_text() == before
    assert capsys.readouterr().out == said


def test_a_card_that_was_edited_makes_another_run(tmp_path, capsys):
    card = tmp_path / "my card.json"
    command = ["finetune", "gemma-tiny", "--policy", str(card), "--out", str(tmp_path), *SMALL]
    Card(policy=sharpmax.PAPER, model="another").save(card)
    with warnings.catch_warnings():
        warnings.simplefilter("always", OtherModelWarning)
        assert main(command) == 0
    assert "warning: this card was fitted on another" in capsys.readouterr().err
    sharpmax.Constant(3.0).save(card)
    assert main(command) == 2
    assert "another config (policy" in capsys.readouterr().err


@pytest.mark.slow
def test_two_processes_train_together(tmp_path):
    """`accelerate launch` on two processes of a CPU: the loss falls, one of them writes, and no step is lost."""
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--cpu",
        "--num_processes",
        "2",
        "--num_machines",
        "1",
    ]
    command = [*launch, "--mixed_precision", "no", "--dynamo_backend", "no", "-m", "sharpmax"]
    arguments = ["finetune", "gemma-tiny", "--policy", "learn", "--at-once", "512", "--out", str(tmp_path), *SMALL]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("exact answers") == 1
    (file,) = (tmp_path / "finetune").glob("*/metrics.json")
    assert json.loads(file.read_text())["losses"]


def test_models_of_random_weights_are_named_where_a_name_is_unknown_and_nowhere_else(tmp_path):
    with pytest.raises(ValueError, match="of random weights there are gemma-tiny"):
        load_by_name("no such model", seed=0, device="cpu")
    for model, device in (("no such model", "tpu"), (str(tmp_path), "cpu")):
        with pytest.raises(ValueError, match=r"cannot run on|does not hold") as refused:
            load_by_name(model, seed=0, device=device)
        assert "random weights" not in str(refused.value)
