"""Paged attention in PyTorch against the float64 reference, sequence by sequence."""

from dataclasses import replace

import pytest
import torch

from sharpmax.torch.paged.call import paged_attention
from sharpmax.torch.paged.gathered import attend_gathered
from sharpmax.torch.paged.pages import PagedRequest, Pages
from tests.torch.kernels import needs_triton
from tests.torch.paged.cases import CASES, PER_HEAD
from tests.torch.paged.scattered import Case, attend, check, judge, scatter


@pytest.mark.filterwarnings("ignore::sharpmax.SilentPolicyWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_contract(case, dtype):
    check(case, dtype, "gathered")


def test_nan_of_one_sequence_stays_with_it():
    case = next(case for case in CASES if case.name == "one query each")
    batch = scatter(case, torch.float32)
    before, _ = attend(case, batch, "gathered")
    batch.query[1] = torch.nan
    after, _ = attend(case, batch, "gathered")
    assert after[1].isnan().all()
    others = [0, 2, 3]
    assert torch.equal(after[others], before[others])


@needs_triton
@pytest.mark.parametrize("window", [None, 7])
def test_a_kernel_gets_no_value_of_nobody(window):
    """The last block of 33 keys is NaN behind them; filled up to 40 keys, a kernel would multiply that by 0."""
    case = Case("filled up", (40, 33), (1, 1), policy=PER_HEAD, window=window)
    batch = scatter(case, torch.float32)
    request = PagedRequest(
        batch.query, batch.pages, batch.ends, longest_query=1, policy=case.policy, scale=16**-0.5, window=window,
        softcap=None, sinks=None, return_stats=True, attended_by="triton",
    )  # fmt: skip
    judge(case, batch, *attend_gathered(request))


@pytest.mark.parametrize(
    ("lengths", "table", "ends", "said"),
    [
        ([5], [[0]], [0, 3], "sequence 0 has 5 keys, and its row of the table holds 1 blocks"),
        ([-1], [[0]], [0, 1], "sequence 0 has -1 keys"),
        ([5], [[0, -1]], [0, 3], r"sequence 0 names blocks \[0, -1\], of which there are 4"),
        ([5], [[0, 9]], [0, 3], r"sequence 0 names blocks \[0, 9\], of which there are 4"),
        ([5], [[0, 1]], [0, 4], r"ends must rise within the 3 queries, got \[0, 4\]"),
        ([2, 2], [[0], [1]], [0, 2, 1], "ends must rise within the 3 queries"),
    ],
)
def test_places_that_do_not_exist_are_refused_by_name(lengths, table, ends, said):
    cache = torch.randn(4, 4, 2, 8)
    pages = Pages(cache, cache, torch.tensor(table), torch.tensor(lengths))
    with pytest.raises(ValueError, match=said):
        paged_attention(torch.randn(3, 4, 8), pages, torch.tensor(ends))


def two_decodes(**options):
    cache = torch.randn(4, 4, 2, 8)
    pages = Pages(cache, cache, torch.tensor([[0, 1], [2, 3]]), torch.tensor([5, 6]))
    return {"query": torch.randn(2, 2, 8), "pages": pages, "ends": torch.tensor([0, 1, 2]), **options}


@pytest.mark.parametrize("window", [0, -1, True, 2.5, (3, 0), "a"])
def test_a_window_that_is_no_number_of_keys_is_refused(window):
    with pytest.raises(ValueError, match="window must be an int of 1 or more"):
        paged_attention(**two_decodes(window=window))


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"longest_query": -1}, ValueError, "longest_query must be an int of 0 or more"),
        ({"longest_query": 0}, ValueError, "longest_query is 0, and a sequence has 1 queries"),
        ({"policy": "paper"}, TypeError, "policy must be a sharpmax policy"),
        ({"query": [[0.0]]}, TypeError, "query must be a torch.Tensor, got list"),
        ({"pages": None}, TypeError, r"pages must be Pages\(key"),
        ({"scale": float("nan")}, ValueError, "scale must be a finite number"),
        ({"softcap": -1.0}, ValueError, "softcap must be positive"),
        ({"sinks": torch.zeros(3)}, ValueError, r"sinks must have one logit per query head, shape \(2,\)"),
        ({"sinks": torch.zeros(2, dtype=torch.long)}, TypeError, "sinks must have a floating dtype"),
        ({"sinks": torch.zeros(2, device="meta")}, ValueError, "sinks must share the query's device cpu, got meta"),
        ({"return_stats": "yes"}, TypeError, "return_stats must be True or False"),
    ],
)
@pytest.mark.parametrize("implementation", ["gathered", pytest.param("triton", marks=needs_triton)])
def test_what_does_not_fit_is_refused_by_name(options, kind, said, implementation):
    if "longest_query" in options:
        implementation = "gathered"  # what only the host can tell
    with pytest.raises(kind, match=said):
        paged_attention(**two_decodes(**options), implementation=implementation)


@pytest.mark.parametrize(
    ("starts", "kind", "said"),
    [
        ([0], ValueError, "2 lengths need as many starts in the flat table, got 1"),
        ([-4, 2], ValueError, "sequence 0 starts at -4, before the flat table"),
        ([0.5, 2.5], TypeError, "starts must be int32 or int64 with 1 axes, got torch.float32"),
    ],
)
def test_starts_that_are_no_places_of_a_flat_table_are_refused(starts, kind, said):
    call = two_decodes()
    flat = replace(call["pages"], table=torch.arange(4), starts=torch.tensor(starts))
    with pytest.raises(kind, match=said):
        paged_attention(**{**call, "pages": flat}, policy=PER_HEAD, implementation="gathered")
