"""The comparison runs in small, keeps what is finished, takes mechanisms from outside, and runs on Ray alike."""

import json
import multiprocessing
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from sharpmax.cli import main
from sharpmax.experiments import compare as package
from sharpmax.experiments.compare import CellsFailedError, compare, engines, outside, plan, workers
from sharpmax.experiments.compare import cell as cells
from sharpmax.experiments.compare.arms import ARMS, Arm, arm_named
from sharpmax.experiments.compare.page import printed
from sharpmax.experiments.compare.plan import MODELS, Cell, Study, cells_of
from sharpmax.experiments.compare.train import Recipe
from sharpmax.tasks.catalogue import TASKS
from tests.places import ROOT

pytestmark = pytest.mark.filterwarnings("ignore::sharpmax.SilentPolicyWarning")

GUIDE = ROOT / "docs" / "guides" / "mechanism.md"


@pytest.fixture
def small(monkeypatch):
    """A study of seconds."""
    study = replace(plan.QUICK, seeds=2, recipe=Recipe(steps=3, batch=2), tuning_steps=2, sequences=2, longest=200)
    monkeypatch.setattr(plan, "QUICK", study)


def answers(folder):
    """What each cell answered, without the time it took."""
    found = {}
    for file in folder.rglob("steps/*.json"):
        record = json.loads(file.read_text())["value"]
        found[file.stem] = {**record, "milliseconds": None}
    return found


def test_cells_can_be_added_and_none_is_computed_twice(small, tmp_path, monkeypatch):
    whole = compare(tmp_path / "whole", quick=True, device="cpu", arms=("paper", "top-k"))
    computed, compute = [], engines.compute

    def counted(cell, *arguments):
        computed.append(cell.name)
        return compute(cell, *arguments)

    monkeypatch.setattr(engines, "compute", counted)
    compare(tmp_path / "parts", quick=True, device="cpu", arms=("paper",), tasks=("share",))
    assert computed == ["share_softmax_tiny", "share_paper_tiny"]
    compare(tmp_path / "parts", quick=True, device="cpu", arms=("paper", "top-k"))
    assert len(computed) == len(set(computed)) == 6
    assert answers(tmp_path / "parts") == answers(tmp_path / "whole")
    assert set(whole["summary"]["tasks"]) == {"recall", "share"}
    assert "share, tiny: sharper attention hurts" in printed(whole)


def test_a_killed_run_continues_to_the_same_numbers(small, tmp_path, monkeypatch):
    compare(tmp_path / "whole", quick=True, device="cpu", tasks=("share",), arms=("paper",))
    examine = cells.examine
    monkeypatch.setattr(cells, "examine", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        compare(tmp_path / "killed", quick=True, device="cpu", tasks=("share",), arms=("paper",))
    assert answers(tmp_path / "killed") == {}
    monkeypatch.setattr(cells, "examine", examine)
    compare(tmp_path / "killed", quick=True, device="cpu", tasks=("share",), arms=("paper",))
    assert answers(tmp_path / "killed") == answers(tmp_path / "whole")


def test_a_cell_that_fails_costs_no_other(small, tmp_path, monkeypatch):
    compute = engines.compute

    def failing(cell, *arguments):
        if cell.arm == "softmax":
            raise ArithmeticError("out of numbers")
        return compute(cell, *arguments)

    monkeypatch.setattr(engines, "compute", failing)
    options = {"quick": True, "device": "cpu", "tasks": ("share",), "arms": ("paper", "top-k")}
    said = "1 of 3 cells failed, the others are kept: softmax on share, tiny: ArithmeticError: out of numbers"
    with pytest.raises(CellsFailedError, match=said):
        compare(tmp_path, **options)
    assert set(answers(tmp_path)) == {"share_paper_tiny", "share_top-k_tiny"}
    monkeypatch.setattr(engines, "compute", compute)
    assert set(compare(tmp_path, **options)["labels"]) == {"softmax", "paper", "top-k"}


def test_processes_give_the_same_numbers_although_two_are_killed(small, tmp_path, monkeypatch, capsys):
    options = {"quick": True, "device": "cpu", "tasks": ("share", "copy"), "arms": ("paper", "paper-inference")}
    compare(tmp_path / "one", **options)
    killed = []

    def with_a_loss(*arguments, **keywords):
        for found in workers.on_processes(*arguments, **keywords):
            for process in multiprocessing.active_children()[: 2 * (not killed)]:
                killed.append(process.pid)
                process.kill()
            yield found

    monkeypatch.setattr(engines, "on_processes", with_a_loss)
    compare(tmp_path / "two", jobs=2, **options)
    assert len(killed) == 2
    assert answers(tmp_path / "one") == answers(tmp_path / "two")
    assert len(answers(tmp_path / "two")) == 6
    said = capsys.readouterr().err
    assert "its process was lost, trying again" in said
    assert said.count("_tiny done, ") == 6
    assert not multiprocessing.active_children()


def test_a_cell_that_fails_in_a_process_costs_no_other(small, beside):
    grow(beside, ROUGH)
    with pytest.raises(CellsFailedError, match="FloatingPointError: the gradient at every learning rate"):
        compare("runs", quick=True, device="cpu", tasks=("share",), arms=("grow:Grow",), jobs=2)
    assert set(answers(beside)) == {"share_softmax_tiny"}


def test_a_process_stays_with_its_mechanism_and_weights_are_trained_once():
    cells = list(cells_of(("share", "copy"), ("paper", "paper-inference"), ("tiny",)))
    softmax, paper, inference = (cells[i : i + 2] for i in (0, 2, 4))
    at_softmax = SimpleNamespace(cell=softmax[0], busy=True)
    assert workers._next([*softmax[1:], *paper], None, [at_softmax]) == paper[0]
    assert workers._next([paper[1], softmax[1]], softmax[0], []) == softmax[1]
    assert workers._next(inference, None, [at_softmax]) == inference[1]
    assert workers._next(inference[:1], None, [at_softmax]) is None


def test_a_run_that_was_stopped_shows_what_it_has(small, tmp_path, monkeypatch):
    compute = engines.compute

    def stopped(cell, *arguments):
        if cell.arm == "paper":
            raise KeyboardInterrupt
        return compute(cell, *arguments)

    monkeypatch.setattr(engines, "compute", stopped)
    with pytest.raises(KeyboardInterrupt):
        compare(tmp_path, quick=True, device="cpu", tasks=("share",), arms=("paper",))
    assert set(json.loads(next(tmp_path.rglob("metrics.json")).read_text())["labels"]) == {"softmax"}


def test_the_rate_with_the_lowest_held_out_loss_is_taken(monkeypatch, tmp_path):
    study = Study(rates=(1e-3, 1e-2, 1e-1), recipe=Recipe(steps=2, batch=2), tuning_steps=1)
    monkeypatch.setattr(cells, "held_out_loss", lambda *a, **k: [2.0, 1.0, float("nan")])
    model, task = Cell("share", "softmax", "tiny").transformer("half"), TASKS["share"]
    rate, losses = cells._tuned(model, task, study, tmp_path)
    assert rate == 1e-2
    assert losses == {"0.001": 2.0, "0.01": 1.0, "0.1": None}
    assert cells._tuned(model, task, replace(study, rates=(0.5,)), tmp_path) == (0.5, {})


def test_an_arm_at_inference_is_asked_with_the_weights_of_another(small, tmp_path):
    compare(tmp_path, quick=True, device="cpu", tasks=("share",), arms=("paper-inference",))
    trained = {file.parent.parent.name for file in tmp_path.rglob("seeds/training.safetensors")}
    assert trained == {"share_softmax_tiny"}
    found = answers(tmp_path)
    assert found["share_paper-inference_tiny"]["held_out_losses"] == found["share_softmax_tiny"]["held_out_losses"]
    assert found["share_paper-inference_tiny"]["asked"] != found["share_softmax_tiny"]["asked"]


def test_a_mechanism_from_outside_takes_part(small, tmp_path, monkeypatch):
    """The one of the guide, as it is written there."""
    plugin = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[1]
    assert len(plugin.splitlines()) <= 30
    (tmp_path / "clipped.py").write_text(plugin)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = compare(tmp_path / "runs", quick=True, device="cpu", tasks=("share",), arms=("clipped:Clipped",))
    assert found["labels"] == {"clipped:Clipped": "Clipped", "softmax": "softmax"}
    page = (tmp_path / "runs" / "compare").rglob("leaderboard.html")
    assert "Clipped(start=0.01)" in next(page).read_text()


GROW = """
import torch
from dataclasses import dataclass
from sharpmax.models.mechanisms import Mechanism, scaled

@dataclass(frozen=True)
class Grow(Mechanism):
    def starts(self, heads, width, layer):
        return {"beta": torch.full((heads, 1), START)}

    def weigh(self, rows, learned):
        return torch.softmax(TIMES, dim=-1)
"""
ROUGH, MENDED = "learned['beta'][:, None, :, :, None] * rows", "scaled(rows, learned['beta'][:, None, :, :, None])"


def grow(folder, times=MENDED, start="1.0"):
    """Write grow.py."""
    (folder / "grow.py").write_text(GROW.replace("TIMES", times).replace("START", start))


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """A folder whose modules can be named, and are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(outside, "_loaded", {})
    yield tmp_path
    sys.modules.pop("grow", None)


def test_another_code_of_a_mechanism_is_trained_again(small, beside, capsys):
    options = {"quick": True, "device": "cpu", "tasks": ("share",), "arms": ("grow:Grow",)}
    grow(beside)
    compare("old", **options)
    first = answers(beside / "old")
    assert compare("old", **options)["labels"].keys() == {"softmax", "grow:Grow"}
    assert answers(beside / "old") == first  # the same code is read back
    assert "changed since" not in capsys.readouterr().err
    grow(beside, start="40.0")
    again = compare("old", **options)
    assert "compare: grow.py changed since: training grow:Grow again" in capsys.readouterr().err
    compare("new", **options)
    assert answers(beside / "old") == answers(beside / "new")
    assert sum(name.startswith("share_grow") for name in first | answers(beside / "old")) == 2
    assert len(list(beside.rglob("other-code/*.json"))) == 1
    assert again["labels"].keys() == {"softmax", "grow:Grow"}


def test_a_mechanism_that_diverges_is_named_at_once_and_the_others_go_on(small, beside, capsys):
    options = {"quick": True, "device": "cpu", "tasks": ("share",), "arms": ("grow:Grow", "paper")}
    grow(beside, ROUGH)
    with pytest.raises(
        CellsFailedError, match="1 of 3 cells failed, the others are kept: grow:Grow on share, tiny"
    ) as e:
        compare("runs", **options)
    said = r"FloatingPointError: the gradient at every learning rate is not finite at step 1: .*mechanism\.beta"
    assert re.search(said, str(e.value))
    assert "share_grow.Grow" in capsys.readouterr().err
    metrics = json.loads(next(beside.rglob("metrics.json")).read_text())
    assert [(one["arm"], one["task"]) for one in metrics["failed"]] == [("grow:Grow", "share")]
    assert set(metrics["labels"]) == {"softmax", "paper"}
    assert "grow:Grow" in (board := next(beside.rglob("leaderboard.html"))).read_text()
    assert "failed" in printed(e.value.metrics)
    grow(beside)
    assert compare("runs", **options)["failed"] == []
    assert '"halves": "failed"' not in board.read_text()


def test_code_that_changes_while_it_runs_is_refused(beside, tmp_path):
    grow(beside)
    (_, cell) = cells_of(("share",), ("grow:Grow",), ("tiny",))
    grow(beside, start="2.0")
    with pytest.raises(ValueError, match=r"grow\.py changed while the comparison ran"):
        cells.compute(cell, plan.QUICK, tmp_path)


def test_a_largest_size_below_the_first_is_refused(tmp_path):
    with pytest.raises(ValueError, match="a largest size of at least 62, the first that is asked of share, got 3"):
        compare(tmp_path, quick=True, device="cpu", tasks=("share",), largest=3)


def test_no_size_above_the_largest_is_asked_and_the_command_says_so(small, tmp_path):
    found = compare(tmp_path, quick=True, device="cpu", tasks=("recall",), arms=("paper",), largest=14)
    arm = found["summary"]["tasks"]["recall"]["tiny"]["paper"]
    assert list(arm["sizes"]) == ["14"]
    for option in ("--quick", "--largest 14", "--precision float32", "--steps 3"):
        assert option in arm["command"]
    assert "largest14" in found["folder"]


def test_the_recorded_command_finds_the_same_run(small, tmp_path):
    """Typed again, it has nothing to compute."""
    compare(tmp_path, quick=True, device="cpu", tasks=("share",), arms=("paper",))
    command = next(iter(answers(tmp_path).values()))["command"].split()[1:]
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("steps/*.json")}
    assert main([*command, "--out", str(tmp_path), "--device", "cpu", "--quiet"]) == 0
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("steps/*.json")} == before


def test_an_estimate_is_told_before_the_first_cell(small, tmp_path, capsys):
    options = ["--quick", "--tasks", "share", "--arms", "paper", "--out", str(tmp_path), "--device", "cpu"]
    assert main(["compare", *options]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("this takes about ")
    assert main(["compare", *options]) == 0
    assert "this takes" not in capsys.readouterr().err


def test_a_list_names_every_mechanism_task_and_model(capsys):
    assert main(["compare", "--list"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.replace("* ", "  ").splitlines() if line.strip()}
    assert listed >= {*ARMS, *TASKS, *MODELS}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "unknown arm 'nothing'; `sharpmax compare --list` shows all"),
        ("math:pi", "expected a Mechanism at math:pi, got float"),
        ("no.where:X", "expected a mechanism at no.where:X, got No module"),
    ],
)
def test_an_arm_that_is_none_is_refused(name, said):
    with pytest.raises(ValueError, match=said):
        arm_named(name)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def x(:", "got SyntaxError: invalid syntax"),
        ("1 / 0", "got ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "got SystemExit: 3"),  # 3 would be the exit status of no gain
    ],
)
def test_a_module_that_cannot_be_imported_is_named_in_one_line(beside, capsys, code, said):
    (beside / "grow.py").write_text(code)
    assert main(["compare", "--quick", "--device", "cpu", "--arms", "grow:Grow"]) == 2
    assert said in capsys.readouterr().err


def test_an_arm_may_come_ready_made(monkeypatch):
    monkeypatch.setattr(package, "READY", Arm("mine", ARMS["entmax"].mechanism), raising=False)
    assert arm_named("sharpmax.experiments.compare:READY").label == "mine"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tasks": ("chess",)}, "expected tasks among recall, .*, got chess"),
        ({"models": ("9T",)}, "expected models among 0.3M, .*, got 9T"),
        ({"engine": "slurm"}, "expected an engine among local, ray"),
        ({"address": "auto"}, "needs engine='ray'"),
        ({"rates": (0.0,)}, "expected learning rates above 0"),
        ({"rates": (0.1, float("nan"))}, "expected learning rates above 0, got nan"),
        ({"rates": (float("inf"),)}, "expected learning rates above 0, got inf"),
        ({"device": "mars"}, "cannot run on the device 'mars'"),
        ({"seed": -1}, "expected seeds from 0 to 4294967295, got -1"),
        ({"jobs": 2, "engine": "ray"}, "expected jobs of at least 1, and 1 with engine='ray', got 2"),
        ({"seeds": 0}, "expected seeds of at least 1"),
        ({"positions": "sin"}, "expected positions among half"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, options, said):
    with pytest.raises(ValueError, match=said):
        compare(tmp_path, quick=True, **options)
    assert not list(tmp_path.iterdir())


def test_models_have_the_parameters_they_are_named_after():
    for name, shape in MODELS.items():
        if name != "tiny":
            said = float(name.removesuffix("M"))
            assert said / 1.35 < shape.parameters / 1e6 < said * 1.35
            assert shape.width == 32 * shape.heads


def test_softmax_is_always_a_cell_and_tasks_of_a_mechanism_are_neighbours():
    found = [cell.name for cell in cells_of(("share", "copy"), ("paper",), ("tiny",))]
    assert found == ["share_softmax_tiny", "copy_softmax_tiny", "share_paper_tiny", "copy_paper_tiny"]
    assert [cell.name for cell in cells_of(("share", "copy", "share"), ("paper", "paper"), ("tiny", "tiny"))] == found


def test_long_sequences_are_fewer():
    study = Study()
    assert study.sequences_of(64) == 128
    assert study.sequences_of(8192) == 32
    assert study.sequences_of(10**6) == 16
    assert replace(study, sequences=4).sequences_of(10**6) == 4
    assert Cell("recall", "softmax", "tiny").sizes(300) == (14, 64)


@pytest.fixture
def cluster():
    """A real Ray on loopback whose head computes nothing."""
    from ray.cluster_utils import Cluster

    for attempt in (1, 2, 3):  # Ray gives a node 30 seconds to start, which a busy machine may miss
        try:
            made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
            break
        except Exception:
            if attempt == 3:
                raise
    yield made
    made.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:os.fork")  # of JAX, which other tests import; Ray's processes use none of it
def test_ray_gives_the_same_numbers_although_a_node_is_killed(small, tmp_path, monkeypatch, cluster):
    """Of two nodes one is killed while it computes, and its cell is computed again."""
    import ray

    options = {"quick": True, "device": "cpu", "tasks": ("share", "copy"), "arms": ("paper", "top-k")}
    compare(tmp_path / "local", **options)
    try:
        doomed = cluster.add_node(num_cpus=1)
        cluster.add_node(num_cpus=1)
        runtime = {"env_vars": {"PYTHONPATH": str(plan.__file__).removesuffix("/sharpmax/experiments/compare/plan.py")}}
        ray.init(address=cluster.address, runtime_env=runtime, log_to_driver=False)

        def with_a_loss(*arguments, **keywords):
            for index, found in enumerate(engines.on_ray(*arguments, **keywords)):
                if index == 0:  # both nodes are at work on the next cells
                    cluster.remove_node(doomed, allow_graceful=False)
                yield found

        monkeypatch.setattr(package, "on_ray", with_a_loss)
        compare(tmp_path / "ray", engine="ray", **options)
    finally:
        ray.shutdown()
    ours, theirs = answers(tmp_path / "local"), answers(tmp_path / "ray")
    assert len(ours) == 6
    for name, record in ours.items():
        other = theirs[name]
        # Another process may sum in another order; answers are the same.
        assert other["held_out_losses"] == pytest.approx(record["held_out_losses"], rel=1e-5)
        rights = [{size: asked["right"] for size, asked in one["asked"].items()} for one in (record, other)]
        assert rights[0] == rights[1]


@pytest.mark.slow
def test_the_quick_comparison_takes_less_than_three_minutes(tmp_path):
    command = [sys.executable, "-m", "sharpmax", "compare", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    assert "leaderboard: " in done.stdout
