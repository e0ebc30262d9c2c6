"""The benchmark of whole models runs on a CPU, in small, and counts what it says it counts."""

import pytest
import torch

from sharpmax import Constant
from sharpmax.bench import bench
from sharpmax.bench.model import FEWEST, PLAIN, _contestants, _lengths, draw_figure, measure, random_card, show
from sharpmax.bench.model.cases import BATCH, CASES
from sharpmax.hf import sharpen
from sharpmax.hf.models.shapes import LOGITS, random_model
from sharpmax.torch.torch_internals import graphs_compiled

SMALL = {"models": ("tiny",), "lengths": (16,), "new_tokens": 2, "repeats": 1}


@pytest.fixture(scope="module")
def figures():
    return measure(**SMALL, policies=("constant", "card"), only=("prefill", "padded generate", "training step"))


def test_every_case_has_every_contestant_beside_plain(figures):
    assert [result["case"] for result in figures["results"]] == ["prefill", "padded generate", "training step"]
    for result in figures["results"]:
        assert set(result["contestants"]) == {PLAIN, "constant", "card"}
        assert result["contestants"][PLAIN]["ratio"] == 1.0
        for found in result["contestants"].values():
            assert 0 < found["fastest"] <= found["seconds"] <= found["slowest"]
            assert found["compiled_after_warm_up"] == 0


def test_tokens_per_second_count_what_the_case_makes(figures):
    prefill, generated, trained = (result["contestants"][PLAIN] for result in figures["results"])
    for found, tokens in ((prefill, 16), (generated, BATCH * 2), (trained, BATCH * 16)):
        assert found["tokens_per_second"] == pytest.approx(tokens / found["seconds"])


def test_the_table_and_the_figure_hold_what_was_measured(figures, tmp_path):
    assert len(show(figures).rows) == 3
    assert draw_figure(figures, tmp_path, "model").exists()


def test_logits_of_random_weights_vary_as_said():
    model = random_model("tiny", context=64, dtype=torch.float32, device="cpu")
    found = []
    with sharpen(model, observer=lambda layer, stats: found.append(stats.entropy[..., -1])), torch.no_grad():
        model(torch.randint(1, 256, (8, 64)))
    # Gaussian logits lose half their variance from log n; an entropy of log 64 would be a uniform row.
    expected = torch.log(torch.tensor(64.0)) - LOGITS**2 / 2
    assert torch.stack(found).mean() < torch.log(torch.tensor(64.0)) - 1.0
    assert torch.stack(found).mean() > expected - 1.0


def test_a_random_card_has_numbers_for_every_head_and_layer():
    card = random_card(random_model("tiny", context=64, dtype=torch.float32, device="cpu"))
    assert len(card.policies) == 2
    assert all(policy.a.shape == (4, 1) for policy in card.policies)


def test_a_card_is_named_as_everywhere(tmp_path):
    """A folder that holds one, or a shipped name: what the command line has let pass is found."""
    Constant(1.2).save(tmp_path / "sharpmax.json")
    of = _contestants(random_model("tiny", context=16, dtype=torch.float32, device="cpu"), ("card",), str(tmp_path))
    assert of["card"].keywords["policy"] == Constant(1.2)


def test_a_new_graph_is_counted():
    before = graphs_compiled()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert graphs_compiled() == before + 1


def test_after_the_seconds_no_further_case_starts_and_the_output_says_which():
    figures = measure(**SMALL, policies=("constant",), only=("prefill", "generate"), seconds=0)
    assert figures["results"] == []
    assert figures["left_out"] == ["tiny, generate, 16 tokens", "tiny, prefill, 16 tokens"]
    assert "tiny, generate, 16 tokens" in show(figures).caption


def test_a_slow_call_takes_fewer_turns_and_a_compiled_case_one_length(monkeypatch):
    monkeypatch.setattr("sharpmax.bench.model.SECONDS_EACH", 0.0)
    calls = []
    monkeypatch.setattr("sharpmax.bench.model._wall_seconds", lambda call: calls.append(1) or 1.0)
    measure(models=("tiny",), lengths=(16,), repeats=9, policies=("constant",), only=("prefill",))
    assert len(calls) == 2 * 2 * FEWEST  # the timed ones, and before each a first call of its block
    assert _lengths("static generate", (), "cuda") == [2048]
    assert _lengths("generate", (), "cuda") == [2048, 16384]


def test_the_command_knows_it():
    figures = bench("model", **SMALL, policies=("constant",), only=("generate",))
    assert set(CASES) > {"generate"}
    assert figures["results"][0]["case"] == "generate"
