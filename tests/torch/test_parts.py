"""Several parts of the keys as one row: the same as attention to all keys, statistics, gradients and empty parts."""

import pytest
import torch

from sharpmax.core.policies import PAPER, Beyond, Constant, EntropyTarget, LengthScaled, LogLinear, Policy
from sharpmax.core.stats import RowStats
from sharpmax.torch import attention
from sharpmax.torch.parts import Part, attend_parts

LENGTH, CUT = 14, 5
POLICIES = [Constant(1.0), Constant(1.4), PAPER, LengthScaled.log_n(4), LogLinear(0.1, 0.2, -0.1), EntropyTarget(0.5)]
POLICIES += [Beyond(4), LengthScaled.llama4(3)]


class ByVariance(Policy):
    """Reads what is computed on request."""

    needs = frozenset({"variance", "minimum", "maximum"})

    def __call__(self, stats, stats_at=None):
        return 1 + 0.1 * stats.variance + 0.01 * (stats.maximum - stats.minimum).clamp(min=0)  # an empty row has none


def drawn(dtype=torch.float64, rows=2):
    torch.manual_seed(0)
    query = torch.randn(rows, 4, LENGTH, 8, dtype=dtype) * 2
    key, value = (torch.randn(rows, 2, LENGTH, 8, dtype=dtype) for _ in range(2))
    return query, key, value


def near_and_far(query, key, value, mask=None):
    """Return the row cut in two: the nearest keys, and the others."""
    far = LENGTH - CUT
    return [
        Part(query, key, value, {"is_causal": True, "window": CUT, "mask": mask}),
        Part(
            query, key[:, :, :far], value[:, :, :far],
            {"is_causal": True, "mask": None if mask is None else mask[..., :far]},
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("policy", [*POLICIES, ByVariance()], ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("masked", [False, True])
def test_two_parts_are_the_whole_row(policy, masked):
    tensors = drawn()
    mask = torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool)
    mask[0, :, :, :3] = False  # padding: its first queries see nothing
    mask = mask if masked else None
    output, stats = attend_parts(near_and_far(*tensors, mask), policy, position=torch.arange(LENGTH)[None, None])
    expected, whole = attention(*tensors, policy=policy, is_causal=True, mask=mask, return_stats=True)
    close = {"rtol": 1e-9, "atol": 1e-9} if not policy.iterative else {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(output, expected, **close)
    for name in ("entropy", "logsumexp", "maximum", "count", "inverse_temperature"):
        ours, theirs = getattr(stats, name), getattr(whole, name)
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours, theirs, **close, msg=name)


def test_what_is_known_saves_the_first_pass_and_changes_nothing(monkeypatch):
    tensors, policy = drawn(), LengthScaled.log_n(4)
    expected, _ = attend_parts(near_and_far(*tensors), policy)
    monkeypatch.setattr("sharpmax.torch.parts.row_stats", lambda *_, **__: pytest.fail("a pass over the logits"))
    count = torch.arange(1.0, LENGTH + 1, dtype=torch.float64).expand(2, 4, -1)
    found, _ = attend_parts(
        near_and_far(*tensors), policy, known=RowStats(count=count, maximum=torch.zeros_like(count))
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("policy", [Constant(1.3), PAPER, LogLinear(0.1, 0.2, -0.1)], ids=lambda p: type(p).__name__)
def test_gradients_are_those_of_the_whole_row(policy):
    gradients = []
    for whole in (False, True):
        tensors = [tensor.requires_grad_() for tensor in drawn()]
        if whole:
            output = attention(*tensors, policy=policy, is_causal=True)
        else:
            output, _ = attend_parts(near_and_far(*tensors), policy)
        (output * torch.linspace(-1, 1, 8, dtype=torch.float64)).sum().backward()
        gradients.append([tensor.grad for tensor in tensors])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)
