"""What two processes counted, under DDP and FSDP2, is what one process counts of all rows."""

import pytest
import torch

from sharpmax.runs.watched import read_record
from sharpmax.torch.watching.measure import Gauge
from tests.torch.gloo import group_of_one, run_ranks
from tests.torch.watching import on_gloo_processes
from tests.torch.watching.on_gloo_processes import STEPS, THRESHOLD, WAYS, run


def test_a_group_of_one_reads_what_no_group_does(tmp_path):
    with group_of_one(tmp_path):
        grouped = run("alone", tmp_path)
    alone = run("alone", tmp_path / "again")
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
    return run_ranks(on_gloo_processes.__file__, 2, tmp_path_factory.mktemp("gloo"))


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
