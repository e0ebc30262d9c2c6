"""torch.compile with lengths left open: a policy per head compiles, and serves another length."""

import pytest
import torch

from sharpmax import PAPER, Constant, PerHead
from sharpmax.torch import attention


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Dynamo detected a call:UserWarning")
def test_a_policy_per_head_compiles_with_open_lengths():
    policy = PerHead((PAPER, Constant(2.0)))

    def attend(q, k, v):
        return attention(q, k, v, policy=policy, is_causal=True)

    compiled = torch.compile(attend, dynamic=True, fullgraph=True, backend="eager")
    for length in (16, 24):
        q, k, v = torch.randn(3, 1, 2, length, 8, generator=torch.Generator().manual_seed(length))
        torch.testing.assert_close(compiled(q, k, v), attend(q, k, v))
