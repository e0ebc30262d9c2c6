"""One value per head: as tensors, and for a part of the heads, as tensor parallelism cuts them."""

import pytest
import torch

import sharpmax
from sharpmax.core.stats import RowStats
from sharpmax.torch.per_head import heads_of, of_heads, with_tensors
from sharpmax.torch.policy_kinds import numbers_of_now

COLUMNS = sharpmax.LogLinear(a=((0.1,), (0.2,), (0.3,), (0.4,)), b=0.2, c=((1.0,), (2.0,), (3.0,), (4.0,)))
MEMBERS = sharpmax.PerHead((sharpmax.PAPER, sharpmax.Constant(1.0), sharpmax.Constant(2.0), sharpmax.Constant(3.0)))


@pytest.mark.parametrize(
    "policy", [COLUMNS, MEMBERS, sharpmax.detach(COLUMNS)], ids=lambda policy: type(policy).__name__
)
def test_a_part_of_the_heads_has_their_betas(policy):
    generator = torch.Generator().manual_seed(0)
    fields = torch.rand(4, 1, 4, 5, generator=generator)
    stats = RowStats(entropy=fields[0], logsumexp=fields[1], maximum=fields[2], count=8 * fields[3] + 1)
    half = RowStats(*(None if x is None else x[:, 2:] for x in stats))
    assert heads_of(policy) == 4
    part = with_tensors(of_heads(policy, 2, 4), torch.device("cpu"))
    torch.testing.assert_close(part(half), with_tensors(policy, torch.device("cpu"))(stats)[:, 2:])


@pytest.mark.parametrize("policy", [sharpmax.PAPER, sharpmax.LogLinear(a=0.1), sharpmax.LogLinear(a=((0.1,),))])
def test_one_policy_for_all_heads_stays_as_it_is(policy):
    assert heads_of(policy) is None
    assert of_heads(policy, 1, 2) is policy


def test_tensors_made_in_inference_mode_are_as_any_others():
    """A server attends in inference mode, where a tensor that is made does not tell of writes."""
    with torch.inference_mode():
        made = with_tensors(COLUMNS, torch.device("cpu"))
    assert not made.a.is_inference()
    assert numbers_of_now(made) is not None


def test_on_a_cpu_a_card_s_numbers_stay_exact():
    held = ((0.1,), (1 / 3,))
    made = with_tensors(sharpmax.Constant(held), torch.device("cpu")).inverse_temperature
    assert made.tolist() == [list(row) for row in held]
