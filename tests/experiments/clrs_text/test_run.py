"""The whole experiment in small: real data, a small model, every arm; continued after an end, and told on a page."""

import json
import time
import warnings

import pytest

from sharpmax.cli import main
from sharpmax.experiments import reproduce
from sharpmax.experiments.clrs_text import arm as arms
from sharpmax.experiments.clrs_text import measured
from sharpmax.experiments.clrs_text import run as run_study
from sharpmax.experiments.clrs_text.budget import attended, budget
from sharpmax.experiments.clrs_text.study import plan_study
from sharpmax.hf.finetune import packing
from sharpmax.tasks.clrs_text.corpus import corpus, held_out


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The folder of a whole quick run, which takes less than two minutes of one processor."""
    out, began = tmp_path_factory.mktemp("runs"), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the Trainer warns of itself
        reproduce("clrs-text", out=out, quick=True)
    assert time.process_time() - began < 120
    return out


@pytest.mark.slow
def test_quick_runs_from_data_to_report(root):
    folder = root / "clrs-text" / "gemma-tiny-quick"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert {run["arm"] for run in metrics["runs"]} == {"plain", "paper", "ssmax", "learn"}
    assert metrics["seeds"] == 2
    assert metrics["beyond"] == [12, 16]
    for run in metrics["runs"]:
        assert run["generation"]["agree"] == run["generation"]["asked"] == 6
        assert run["origin"]["device"]  # of the machine that trained it, whichever draws the page
    text = (root / "report.html").read_text()
    assert "heapsort, MST-Kruskal and bubble sort" in text
    assert "sharpened at inference only" in text
    assert "All thirty algorithms, as committed: smollm2 on NVIDIA H200" in text


@pytest.mark.slow
def test_every_number_follows_from_the_records(root):
    folder = root / "clrs-text" / "gemma-tiny-quick"
    study = plan_study(seed=0, quick=True)

    def step(name):
        return json.loads((folder / "steps" / f"{name}.json").read_text())["value"]

    records = [step(f"{arm}-seed{seed}") for arm in study.arms for seed in study.seeds]
    again = json.loads(json.dumps(measured(study, step("test"), records)))
    metrics = json.loads((folder / "metrics.json").read_text())
    assert again.items() <= metrics.items()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_finished_arm_is_not_trained_again(root, monkeypatch):
    record = root / "clrs-text" / "gemma-tiny-quick" / "steps" / "learn-seed1.json"
    before = json.loads(record.read_text())["value"]
    record.unlink()
    trained = []
    train = arms.finetune
    monkeypatch.setattr(arms, "finetune", lambda *a, **k: trained.append(1) or train(*a, **k))
    reproduce("clrs-text", out=root, quick=True)
    after = json.loads(record.read_text())["value"]
    assert len(trained) == 1
    assert after["right"] == before["right"]
    assert after["losses"] == before["losses"]
    assert after["policy"] == before["policy"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_finished_run_goes_on_to_more_seeds_and_trains_those_alone(tmp_path, monkeypatch):
    few = {"quick": True, "steps": 4, "arms": ("plain", "paper"), "device": "cpu"}
    run_study(tmp_path, seeds=1, **few)
    folder = tmp_path / "clrs-text" / "gemma-tiny-quick-steps4-plain-paper"
    before = {file: file.read_bytes() for file in (folder / "steps").iterdir()}
    seeds = []
    train = arms.finetune
    monkeypatch.setattr(
        arms, "finetune", lambda m, e, recipe, **k: seeds.append(recipe.seed) or train(m, e, recipe, **k)
    )
    monkeypatch.setenv("SHARPMAX_COMMIT", "later")
    grown = run_study(tmp_path, seeds=2, **few)
    assert seeds == [1, 1]
    assert all(file.read_bytes() == content for file, content in before.items())
    commits = {file.stem: json.loads(file.read_text())["commit"] for file in (folder / "steps").iterdir()}
    assert {name for name, commit in commits.items() if commit == "later"} == {"plain-seed1", "paper-seed1"}
    assert [(run["arm"], run["seed"]) for run in grown["runs"]] == [
        ("plain", 0), ("plain", 1), ("paper", 0), ("paper", 1)
    ]  # fmt: skip
    assert "later" in json.loads((folder / "metrics.json").read_text())["commit"]
    whole = run_study(tmp_path / "at once", seeds=2, **few)
    assert grown["difference"] == whole["difference"]
    with pytest.raises(ValueError, match=r"seeds: \[0, 1\] there, \[0\] here"):
        run_study(tmp_path, seeds=1, **few)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_answers_to_other_questions_are_not_continued(root, monkeypatch):
    file = root / "clrs-text" / "gemma-tiny-quick" / "steps" / "test.json"
    monkeypatch.setattr(arms, "finetune", None)
    before = file.read_text()
    step = json.loads(before.replace("minimum", "maximum", 1))
    del step["sha256"]  # as an earlier version wrote it: what is edited by hand is refused before that
    file.write_text(json.dumps(step))
    with pytest.raises(ValueError, match="answers to other questions"):
        reproduce("clrs-text", out=root, quick=True)
    file.write_text(before)


@pytest.mark.filterwarnings("ignore")
def test_the_learning_rate_is_chosen_on_examples_of_neither_training_nor_test(tmp_path):
    report = reproduce("clrs-text", out=tmp_path, quick=True, steps=12, rates=(1e-5, 3e-3))
    metrics = json.loads((tmp_path / "clrs-text" / "gemma-tiny-quick-steps12-rates" / "metrics.json").read_text())
    assert "in neither training nor test. The best, 0.003" in report.read_text()
    losses = {found["rate"]: found["held_out_loss"] for found in metrics["tried"]}
    assert metrics["best"] == 3e-3
    assert losses[3e-3] < losses[1e-5]
    plan = plan_study(seed=0, quick=True).corpus
    known = {example.question for example in (*corpus(plan).train, *corpus(plan).test)}
    assert not known & {example.question for example in held_out(plan)}


def test_every_algorithm_gets_its_share_of_the_examples_whatever_its_length():
    shares = budget("gemma-tiny", plan_study(seed=0, quick=True).corpus)
    for kind in ("examples", "tokens", "answer_tokens"):
        assert sum(of[f"share_of_{kind}"] for of in shares.values()) == pytest.approx(1)
    assert all(of["share_of_examples"] == pytest.approx(1 / 3, abs=0.05) for of in shares.values())
    assert shares["task_scheduling"]["share_of_answer_tokens"] > 0.6
    assert shares["minimum"]["different"] == shares["minimum"]["examples"]
    assert shares["segments_intersect"]["different"] < 0.5 * shares["segments_intersect"]["examples"]


def test_the_budget_of_no_model_is_one_line_before_any_text_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(arms, "corpus", None)
    model = tmp_path / "model"
    model.mkdir()
    command = ["reproduce", "clrs-text", "--only", "budget", "--model", str(model), "--out", str(tmp_path / "runs")]
    assert main(command) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"sharpmax: error: the folder {model} holds no config.json: ")
    assert said.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_the_budget_is_a_step_of_the_experiment(tmp_path):
    assert main(["reproduce", "clrs-text", "--quick", "--only", "budget", "--out", str(tmp_path)]) == 0
    metrics = json.loads((tmp_path / "clrs-text" / "gemma-tiny-quick-budget" / "metrics.json").read_text())
    assert set(metrics["algorithms"]) == {"minimum", "segments_intersect", "task_scheduling"}
    assert "task_scheduling" in (tmp_path / "report.html").read_text()


def test_a_run_meets_few_shapes_of_batches(monkeypatch):
    study = plan_study(seed=0, quick=True)
    shapes, cells = attended("gemma-tiny", study.corpus, study.recipe)
    monkeypatch.setattr(packing, "coarse", lambda count: count)
    exact_shapes, exact_cells = attended("gemma-tiny", study.corpus, study.recipe)
    assert 1 <= shapes < exact_shapes
    assert 1 < exact_cells < cells < 1.3 * exact_cells


def test_a_folder_of_any_name_is_a_model_to_study(tmp_path):
    assert plan_study(seed=0, quick=True, model=str(tmp_path / "my model")).name == "my-model-quick"
    assert plan_study(seed=0, quick=True, arms=("plain", "paper", "plain")).arms == ("plain", "paper")
