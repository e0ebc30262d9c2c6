"""Paged attention in PyTorch against the float64 reference, sequence by sequence."""

import pytest
import torch

from tests.torch.paged.cases import CASES
from tests.torch.paged.scattered import attend, judge, scatter


@pytest.mark.filterwarnings("ignore::sharpmax.SilentPolicyWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_contract(case, dtype):
    batch = scatter(case, dtype)
    judge(case, batch, *attend(case, batch, "gathered"))


def test_nan_of_one_sequence_stays_with_it():
    case = next(case for case in CASES if case.name == "one query each")
    batch = scatter(case, torch.float32)
    before, _ = attend(case, batch, "gathered")
    batch.query[1] = torch.nan
    after, _ = attend(case, batch, "gathered")
    assert after[1].isnan().all()
    others = [0, 2, 3]
    assert torch.equal(after[others], before[others])
