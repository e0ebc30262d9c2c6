"""Softmax under policies: fused streaming equals dense weights, and learned numbers reach the right head and seed."""

import pytest
import torch

from sharpmax import PAPER, Constant
from sharpmax.core.policies import LengthScaled
from sharpmax.experiments.compare.arms import ARMS
from sharpmax.models.mechanisms import LearnedLogLinear, LearnedSSMax, Sharpened, base, policies

SLOPES = torch.tensor([0.0, 0.0, 2.0**-2, 2.0**-8])


def tensors(queries=9, keys=9, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, 4, n, 8, generator=generator, dtype=dtype) for n in (queries, keys, keys)]


def learned_by(mechanism, dtype=torch.float64):
    starts = mechanism.starts(4, 8, 0)
    generator = torch.Generator().manual_seed(1)
    return {n: s + 0.1 * torch.rand(2, *s.shape, generator=generator, dtype=dtype) for n, s in starts.items()}


@pytest.mark.parametrize("name", [name for name in ARMS if isinstance(ARMS[name].mechanism, policies.Softmax)])
@pytest.mark.parametrize("queries", [9, 3])
def test_streaming_is_dense_attention(name, queries):
    mechanism = ARMS[name].mechanism
    learned = learned_by(mechanism)
    arguments = (*tensors(queries), SLOPES.double(), learned)
    dense = mechanism.attend(*arguments)
    torch.testing.assert_close(mechanism.stream(*arguments, torch.float64), dense)


def test_half_precision_holds_positions_exactly():
    q, k, v = (t.zero_() for t in [*tensors(1, 5000, torch.float32)[:2], torch.zeros(2, 3, 4, 5000, 8)])
    keys = policies._with_positions(q, k, v, SLOPES, torch.float16)[1].half()
    places = torch.arange(5000.0)
    for head, slope in enumerate(SLOPES):
        assert torch.equal(keys[0, 0, head].float().sum(-1), slope * places)


def test_distance_counts_as_alibi_has_it():
    q, k, _ = (t.zero_() for t in tensors(2, 4))
    rows = Sharpened().logits(q, k, SLOPES.double(), {})
    assert rows[0, 0, 2].tolist() == [[-0.5, -0.25, 0.0, -torch.inf], [-0.75, -0.5, -0.25, 0.0]]


def test_learned_numbers_are_each_heads_and_seeds_own():
    mechanism = LearnedSSMax()
    learned = {"s": torch.zeros(2, 4, 1).double(), "b": torch.ones(2, 4, 1).double()}
    learned["s"][1, 2] = 0.7
    arguments = (*tensors(), SLOPES.double())
    found, plain = mechanism.attend(*arguments, learned), Sharpened().attend(*arguments, {})
    expected = Sharpened(LengthScaled.ssmax(0.7, 1.0)).attend(*arguments, {})
    torch.testing.assert_close(found[1, :, 2], expected[1, :, 2])
    found[1, :, 2] = plain[1, :, 2]
    torch.testing.assert_close(found, plain)


def test_slopes_held_above_0_never_soften_longer_rows():
    mechanism = LearnedLogLinear(rising=True)
    policy = mechanism.policy_of({"a": torch.zeros(1), "b": torch.tensor([-9.0]), "c": torch.tensor([-9.0])})
    assert 0 < float(policy.b) < 1e-3
    assert 0 < float(policy.c) < 1e-3
    assert float(LearnedLogLinear().policy_of({n: torch.tensor(-1.0) for n in "abc"}).b) == -1.0


def test_free_heads_are_sharpened_alone():
    arguments = (*tensors(), SLOPES.double(), {})
    found = Sharpened(PAPER, heads="free").attend(*arguments)
    torch.testing.assert_close(found[:, :, :2], Sharpened(PAPER).attend(*arguments)[:, :, :2])
    torch.testing.assert_close(found[:, :, 2:], Sharpened(Constant(1.0)).attend(*arguments)[:, :, 2:])
    with pytest.raises(ValueError, match="expected heads to be 'all' or 'free'"):
        Sharpened(PAPER, heads="some")


def test_blocks_of_rows_are_the_whole(monkeypatch):
    monkeypatch.setattr(base, "ENTRIES_AT_ONCE", 2 * 3 * 4 * 9 * 2)  # two rows at once
    arguments = (*tensors(), SLOPES.double(), {})
    mechanism = Sharpened(PAPER)
    torch.testing.assert_close(
        base.Mechanism.stream(mechanism, *arguments, torch.float64), mechanism.attend(*arguments)
    )


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["softmax", "paper", "rising", "ssmax-fixed", "gated-0.5", "beyond-1-2-1"])
@pytest.mark.parametrize("queries", [4096, 16])
def test_streaming_in_half_precision_is_dense_attention(name, queries):
    generator = torch.Generator(device="cuda").manual_seed(0)
    q, k, v = (torch.randn(1, 2, 4, 4096, 32, generator=generator, device="cuda") for _ in range(3))
    q = (2 * q[..., 4096 - queries :, :]).half().float()  # what both can hold
    k, v, slopes = k.half().float(), v.half().float(), SLOPES.cuda()
    mechanism = ARMS[name].mechanism
    with torch.no_grad():
        dense = mechanism.attend(q, k, v, slopes, {})
        streamed = mechanism.stream(q, k, v, slopes, {}, torch.float16)
    # Beta rounds queries to 11 bits once more: logits of up to 20 move by a hundredth, and weights by that share.
    assert (streamed - dense).norm() / dense.norm() < 5e-3
