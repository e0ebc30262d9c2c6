"""What two processes counted, under DDP and FSDP2, is what one process counts of all rows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from sharpmax.runs.watched import read_record
from sharpmax.torch.watching.measure import Gauge
from tests.torch.watching.on_gloo_processes import STEPS, THRESHOLD, WAYS, run

ROOT = Path(__file__).parents[3]


@pytest.fixture
def _alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_alone")
def test_a_group_of_one_reads_what_no_group_does(tmp_path):
    grouped = run("alone", tmp_path)
    dist.destroy_process_group()
    alone = run("alone", tmp_path / "again")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/second", rank=0, world_size=1)
    assert all(torch.equal(grouped[name], alone[name]) for name in alone)


def test_halves_add_up_to_the_whole():
    query, key = torch.randn(2, 4, 2, 16, 8)
    whole, halves = Gauge(), [Gauge(), Gauge()]
    whole(0, query, key, is_causal=True)
    for i, half in enumerate(halves):
        half(0, query[2 * i : 2 * i + 2], key[2 * i : 2 * i + 2], is_causal=True)
    first, second = (half.layers[0] for half in halves)
    assert torch.equal(torch.maximum(first.maximum, second.maximum), whole.layers[0].maximum)
    assert torch.equal(first.bins + second.bins, whole.layers[0].bins)
    torch.testing.assert_close(first.sums + second.sums, whole.layers[0].sums, rtol=1e-14, atol=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where two processes have written what they read."""
    made = tmp_path_factory.mktemp("gloo")
    script = Path(__file__).parent / "on_gloo_processes.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script)]
    processes = [
        subprocess.Popen([*command, str(rank), str(made)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    return made


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_two_processes_read_what_one_does(way, folder, tmp_path):
    alone = run("alone", tmp_path)
    assert (alone["scaled"] < 1).any(), "the threshold clips nothing"
    assert (alone["maximum"] > THRESHOLD).any()
    for rank in range(2):
        found = torch.load(folder / f"{rank}.pt", weights_only=True)[way]
        # The first step is of the same weights; later ones of weights that gradients of two halves have moved.
        assert torch.equal(found["maximum"][0], alone["maximum"][0])
        assert torch.equal(found["bins"][0], alone["bins"][0])
        assert int(found["next step"]) == STEPS  # of a process that does not read the record, too
        torch.testing.assert_close(found["sums"][0], alone["sums"][0], rtol=1e-14, atol=0)
        assert torch.equal(found["sums"][..., 0], alone["sums"][..., 0])
        for name, expected in alone.items():
            if name not in ("bins", "sums"):
                torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_one_process_writes_the_record(way, folder):
    assert [line["step"] for line in read_record(folder / f"{way}.jsonl").steps] == list(range(STEPS))
