"""A run folder: continues what was killed, refuses what is not its own, says where its numbers come from."""

import json
import os
import platform
from functools import partial

import numpy as np
import pytest

from sharpmax.runs.run_folder import RunFolder, read_metrics, run_name, stored_config


@pytest.fixture
def run(tmp_path):
    return RunFolder.open(tmp_path, "demo", "a", {"seed": 0})


def test_once_computes_once(tmp_path):
    calls = []

    def compute():
        calls.append(1)
        return (0.1, np.float64(1 / 3))

    first = RunFolder.open(tmp_path, "demo", "a", {"seed": 0}).once("step", compute)
    second = RunFolder.open(tmp_path, "demo", "a", {"seed": 0}).once("step", compute)
    assert first == second == [0.1, 1 / 3]
    assert len(calls) == 1


def test_a_step_that_failed_is_computed_again(tmp_path):
    folder = RunFolder.open(tmp_path, "demo", "a", {})
    with pytest.raises(ZeroDivisionError):
        folder.once("step", lambda: 1 / 0)
    assert folder.once("step", lambda: 1) == 1


def test_finish_says_where_the_numbers_come_from(tmp_path):
    file = RunFolder.open(tmp_path, "demo", "a", {"seed": 4, "sizes": (1, 2)}).finish({"accuracy": 0.5})
    stored = json.loads(file.read_text())
    assert stored["accuracy"] == 0.5
    assert stored["seed"] == 4
    assert stored["config"]["sizes"] == [1, 2]
    assert stored["versions"]["python"] == platform.python_version()
    assert stored["versions"]["numpy"] == np.__version__
    assert {"device", "commit", "command"} <= stored.keys()


def test_the_same_config_continues_and_another_is_refused(tmp_path):
    RunFolder.open(tmp_path, "demo", "a", {"seed": 0, "sizes": (1, 2)})
    RunFolder.open(tmp_path, "demo", "a", {"sizes": [1, 2], "seed": 0})
    with pytest.raises(ValueError, match=r"sizes: \[1, 2\] there, \[1, 3\] here.*--out"):
        RunFolder.open(tmp_path, "demo", "a", {"seed": 0, "sizes": (1, 3)})
    with pytest.raises(ValueError, match=r"\(seed: 0 there, 1 here; steps: 'nothing' there, 5 here\)"):
        RunFolder.open(tmp_path, "demo", "a", {"seed": 1, "sizes": (1, 2), "steps": 5})


def test_a_list_that_may_grow_loses_nothing(tmp_path):
    def opened(seeds, grows="seeds", **others):
        return RunFolder.open(tmp_path, "demo", "a", {"seed": 0, "seeds": seeds, **others}, grows=grows)

    assert opened([0, 1]).once("seed0", lambda: 1) == 1
    with pytest.raises(ValueError, match=r"seeds: \[0, 1\] there, \[0, 1, 2\] here"):
        opened([0, 1, 2], grows=None)
    for other in ({"seeds": [1, 2, 3]}, {"seeds": [0]}, {"seeds": [0, 1, 2], "steps": 5}):
        with pytest.raises(ValueError, match="another config"):
            opened(**other)
    grown = opened([0, 1, 2])
    assert grown.once("seed0", lambda: 2) == 1
    assert json.loads((grown.path / "config.json").read_text())["seeds"] == grown.config["seeds"] == [0, 1, 2]
    with pytest.raises(ValueError, match=r"seeds: \[0, 1, 2\] there, \[0, 1\] here"):
        opened([0, 1])
    assert opened([3, 0, 1, 2]).config["seeds"] == [3, 0, 1, 2]


def test_a_planned_growth_is_not_written(tmp_path):
    RunFolder.open(tmp_path, "demo", "a", {"seeds": [0]})
    planned = RunFolder.planned(tmp_path, "demo", "a", {"seeds": [0, 1]}, grows="seeds")
    assert json.loads((planned.path / "config.json").read_text())["seeds"] == [0]


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_config_is_refused_by_name(content, tmp_path):
    folder = RunFolder.open(tmp_path, "demo", "a", {})
    (folder.path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json"):
        RunFolder.open(tmp_path, "demo", "a", {})


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc", "a b", ".hidden"])
def test_names_cannot_leave_the_folder(name, tmp_path):
    with pytest.raises(ValueError, match="plain file name"):
        RunFolder.open(tmp_path, "demo", name, {})
    with pytest.raises(ValueError, match="plain file name"):
        RunFolder.open(tmp_path, "demo", "a", {}).once(name, lambda: 1)


def test_a_folder_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "demo").write_text("in the way")
    with pytest.raises(OSError, match=r"cannot write the run folder .*--out"):
        RunFolder.open(tmp_path, "demo", "a", {})


def test_steps_of_another_commit_are_named_in_the_metrics(run, monkeypatch):
    monkeypatch.setattr("sharpmax.runs.run_folder.commit", lambda: "before")
    run.once("one", lambda: 1)
    monkeypatch.setattr("sharpmax.runs.run_folder.commit", lambda: "after")
    monkeypatch.setattr("sharpmax.runs.run_folder.provenance", lambda: {"commit": "after"})
    assert run.once("one", lambda: 2) == 1
    run.once("two", lambda: 2)
    assert json.loads(run.finish({}).read_text())["commit"] == ["after", "before"]


def test_a_step_that_is_no_step_says_what_to_do(run):
    run.once("one", lambda: 1)
    (run.path / "steps" / "one.json").write_text("{}")
    with pytest.raises(ValueError, match="delete it to compute it again"):
        run.once("one", lambda: 1)


@pytest.mark.parametrize(
    ("before", "after"), [('"value": 1.5', '"value": 2.5'), ("1.5", "NaN"), ('"commit"', '"author"'), ("}", "")]
)
def test_a_step_that_was_edited_is_refused_by_name(before, after, run, monkeypatch):
    monkeypatch.setattr("sharpmax.runs.run_folder.commit", lambda: "before")
    run.once("one", lambda: 1.5)
    step = run.path / "steps" / "one.json"
    step.write_text(step.read_text().replace(before, after))
    with pytest.raises(ValueError, match=rf"{step} is not .*; delete it to compute it again"):
        run.once("one", lambda: 1.5)
    with pytest.raises(ValueError, match=r"one\.json"):
        run.finish({})
    step.unlink()
    assert run.once("one", lambda: 1.5) == 1.5


def test_a_step_under_another_name_is_refused(run):
    run.once("one", lambda: 1.5)
    (run.path / "steps" / "one.json").rename(run.path / "steps" / "two.json")
    with pytest.raises(ValueError, match=r"two\.json is not as it was written.*renamed"):
        run.once("two", lambda: 2.5)


def test_metrics_that_were_edited_are_refused_by_name(run):
    file = run.finish({"accuracy": 0.5})
    assert read_metrics(run.path)["accuracy"] == 0.5
    file.write_text(file.read_text().replace("0.5", "0.9"))
    with pytest.raises(ValueError, match=r"metrics\.json is not as it was written.*delete it"):
        read_metrics(run.path)


def test_a_step_of_an_earlier_version_has_no_checksum_and_is_read(run):
    (run.path / "steps").mkdir()
    (run.path / "steps" / "one.json").write_text('{"commit": null, "value": [1, {"2": 0.1}]}')
    assert run.once("one", lambda: pytest.fail("computed again")) == [1, {"2": 0.1}]


def test_a_pipe_in_a_run_folder_does_not_block(run):
    (run.path / "steps").mkdir()
    readers = {"steps/one.json": lambda: run.read("one"), "metrics.json": lambda: read_metrics(run.path)}
    for file, read in (readers | {"config.json": lambda: stored_config(run.path)}).items():
        (run.path / file).unlink(missing_ok=True)
        os.mkfifo(run.path / file)
        with pytest.raises(ValueError, match=rf"{file} is not JSON: it is a pipe"):
            read()


def test_metrics_do_not_hide_where_they_come_from(run):
    with pytest.raises(ValueError, match="may not be named commit"):
        run.finish({"commit": "mine"})


def test_a_planned_run_is_refused_as_an_opened_one_and_leaves_nothing(tmp_path):
    planned = RunFolder.planned(tmp_path, "demo", "a", {"seed": 0})
    assert not list(tmp_path.iterdir())
    assert RunFolder.open(tmp_path, "demo", "a", {"seed": 0}) == planned
    with pytest.raises(ValueError, match="another config"):
        RunFolder.planned(tmp_path, "demo", "a", {"seed": 1})
    assert not [file for file in planned.path.iterdir() if file.name != "config.json"]
    (tmp_path / "file").touch()
    for root, name in ((tmp_path / "file", "a"), (tmp_path, "a" * 300)):
        with pytest.raises(OSError, match=r"cannot write the run folder .*--out"):
            RunFolder.planned(root, "demo", name, {})


def test_a_run_that_came_in_between_is_not_overwritten(tmp_path):
    planned = RunFolder.planned(tmp_path, "demo", "a", {"seed": 0})
    RunFolder.open(tmp_path, "demo", "a", {"seed": 1})
    with pytest.raises(ValueError, match="seed: 1 there, 0 here"):
        planned.begin()


def test_every_step_is_computed_once_and_given_in_its_order(tmp_path):
    run, made = RunFolder.open(tmp_path, "demo", "a", {}), []
    steps = {name: partial(lambda name: made.append(name) or name.upper(), name) for name in ("b", "a")}
    run.once("a", lambda: "kept")
    assert run.every("letters", steps) == ["B", "kept"]
    assert made == ["b"]


def test_a_key_may_hold_the_colon_of_a_task(tmp_path):
    run = RunFolder.open(tmp_path, "demo", "a", {})
    assert run.once("lookup:price-8", lambda: 1) == 1
    assert run.has("lookup:price-8")
    assert run.steps == ["lookup-price-8"]


def test_a_run_is_named_after_its_model(tmp_path, monkeypatch):
    (tmp_path / "my model").mkdir()
    monkeypatch.chdir(tmp_path / "my model")
    assert [run_name(model) for model in ("smollm2", "google/gemma-2b", ".", "../my model/", "..!")] == [
        "smollm2", "gemma-2b", "my-model", "my-model", "model"
    ]  # fmt: skip


def test_steps_without_a_config_are_nobodys(tmp_path):
    run = RunFolder.open(tmp_path, "one", "run", {"seed": 0})
    run.once("step", lambda: 1)
    (run.path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"holds steps of a run and no config.json"):
        RunFolder.open(tmp_path, "one", "run", {"seed": 1})
