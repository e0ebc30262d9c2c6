"""The paged kernels against the float64 reference: blocks of any size in any order, one query and many.

On a machine with a GPU the same tests run there, and those of long caches and CUDA graphs with them.
"""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import sharpmax
from sharpmax.torch.paged import paged_attention
from sharpmax.torch.triton import paged
from tests.marks import slow
from tests.torch.kernels import DEVICE
from tests.torch.paged.cases import CASES, PER_HEAD, TABLE
from tests.torch.paged.scattered import Case, attend, check, scatter
from tests.torch.triton import compiled_paged
from tests.torch.triton.without_interpreter import printed_by

pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.filterwarnings("ignore::sharpmax.SilentPolicyWarning"),
]
DTYPES = [torch.float32, torch.float16, torch.bfloat16] if DEVICE == "cuda" else [torch.float32]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_contract(case, dtype):
    check(case, dtype, "triton")


@pytest.mark.parametrize("case", [case for case in CASES if "one query each" in case.name], ids=lambda case: case.name)
def test_contract_in_half_precision_where_scores_are_kept(case):
    check(case, torch.float16, "triton")


@pytest.mark.parametrize("case", [case for case in CASES if "one query each" in case.name], ids=lambda case: case.name)
def test_without_room_for_scores_the_keys_are_read_twice(case, monkeypatch):
    monkeypatch.setattr(paged, "MOST_KEPT", 0)
    check(case, torch.float32, "triton")


@pytest.mark.parametrize("parts", [1, 3, 64])
@pytest.mark.parametrize("queries", [(1, 1, 1), (1, 9, 2)], ids=["one query", "many"])
def test_however_the_keys_are_split(parts, queries, monkeypatch):
    monkeypatch.setattr(paged, "MOST_PARTS", parts)
    case = Case("split", (200, 90, 3), queries, policy=PER_HEAD, window=None)
    check(case, torch.float32, "triton")


@pytest.fixture
def wide_tiles(monkeypatch):
    """Without a GPU, blocks of so many keys that a long row takes the interpreter seconds."""
    if DEVICE == "cpu":
        shape = paged.tile_shape
        monkeypatch.setattr(paged, "tile_shape", lambda *arguments: shape(*arguments)._replace(BN=512))


@pytest.mark.usefixtures("wide_tiles")
@pytest.mark.parametrize("policy", [sharpmax.PAPER, TABLE, PER_HEAD], ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize("length", [10_000, *(slow(100_000) if DEVICE == "cpu" else (100_000,))])
@pytest.mark.parametrize("size", [256] if DEVICE == "cpu" else [16, 256])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("queries", [1, 16])
def test_long_caches(length, queries, dtype, size, policy):
    heads = 4 if policy is PER_HEAD else 2
    case = Case(f"{length} keys", (length, 7), (queries, 1), heads=heads, key_heads=1, size=size, policy=policy)
    check(case, dtype, "triton")


class WaitsForTheDevice(TorchDispatchMode):
    """Raise where a value of a tensor is read on the host."""

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        if operator.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero):
            raise AssertionError(f"{operator} waits for the device")
        return operator(*arguments, **(options or {}))


@pytest.mark.parametrize("policy", [sharpmax.PAPER, PER_HEAD, sharpmax.LengthScaled.llama4(16, 0.5)], ids=repr)
def test_no_value_is_read_on_the_host(policy):
    case = Case("mixed", (20, 9), (4, 1), policy=policy)
    batch = scatter(case, torch.float32)
    with WaitsForTheDevice():
        paged_attention(batch.query, batch.pages, batch.ends, policy=policy, longest_query=4, implementation="triton")


def test_padding_past_the_last_query_disturbs_nothing():
    case = Case("padded", (20, 9), (4, 1), policy=PER_HEAD)
    batch = scatter(case, torch.float32)
    expected, stats = attend(case, batch, "triton")
    wider = replace_batch(batch)
    got, rows = attend(case, wider, "triton")
    assert torch.equal(got[:5], expected)
    assert torch.equal(rows.entropy[:, :5], stats.entropy)


def replace_batch(batch):
    """Return the batch as a server pads it: more rows of query, and sequences of no query and no key."""
    pages = batch.pages
    table = torch.cat([pages.table, pages.table[:1].expand(2, -1)])
    lengths = torch.cat([pages.lengths, pages.lengths.new_zeros(2)])
    query = torch.cat([batch.query, torch.full_like(batch.query[:3], torch.nan)])
    ends = torch.cat([batch.ends, batch.ends[-1:].expand(2)])
    return replace(batch, query=query, pages=replace(pages, table=table, lengths=lengths), ends=ends)


def test_what_kernels_do_not_serve_is_refused_by_name():
    case = Case("refused", (20,), (1,), policy=sharpmax.EntropyTarget(0.5))
    batch = scatter(case, torch.float32)
    with pytest.raises(NotImplementedError, match="EntropyTarget"):
        attend(case, batch, "triton")


def test_a_policy_of_other_heads_than_there_are_reads_no_other_memory():
    case = Case("five heads' numbers for four", (20,), (1,), policy=sharpmax.Constant(torch.ones(5, 1)))
    with pytest.raises(ValueError, match="do not broadcast"):
        attend(case, scatter(case, torch.float32), "triton")


@pytest.mark.slow
def test_every_kernel_compiles_within_the_memory_of_gpus_that_are_not_here():
    """As the installed Triton compiles them; `make test-gpu` has its fast sibling, which runs them."""
    found = printed_by(compiled_paged)
    assert len(found) == 36 + 11
    for name, (taken, memory) in found.items():
        assert taken <= memory, name
    # Of the keys of a long cache, two blocks of 128 are on their way while a third is used.
    assert found["H100, H200: scores_kernel, bf16, 128, one query"][0] > 2 * 128 * 128 * 2


@pytest.mark.gpu
@pytest.mark.parametrize("policy", [sharpmax.PAPER, PER_HEAD], ids=lambda policy: type(policy).__name__)
def test_a_cuda_graph_serves_other_lengths_and_tables(policy):
    case = Case("graph", (700, 90, 300), (1, 1, 1), width=64, value_width=64, policy=policy)
    from sharpmax.torch.per_head import with_tensors

    policy = with_tensors(policy, torch.device("cuda"))
    batch = scatter(case, torch.float16)
    options = {"policy": policy, "longest_query": 1, "implementation": "triton"}
    paged_attention(batch.query, batch.pages, batch.ends, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = paged_attention(batch.query, batch.pages, batch.ends, **options)
    batch.pages.lengths.copy_(torch.tensor([5, 700 - 610, 12]))
    batch.query.normal_()
    graph.replay()
    expected = paged_attention(batch.query, batch.pages, batch.ends, **{**options, "implementation": "gathered"})
    torch.testing.assert_close(output, expected, atol=2e-3, rtol=2e-3)
