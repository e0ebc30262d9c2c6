"""Which policies a kernel evaluates, and that the numbers it is given are those of now."""

import copy
import pickle

import pytest
import torch

from sharpmax import PAPER, Beyond, Constant, EntropyTarget, LengthScaled, LogLinear, PerHead, Polynomial, Table, detach
from sharpmax.torch.policy_kinds import (
    BEYOND,
    LENGTH,
    LOG_LINEAR,
    POLYNOMIAL,
    SOLVED,
    TABLE,
    beta_range,
    constant_beta,
    keep_numbers,
    kernel_kind,
    kernel_policy,
    numbers_of_now,
)

CPU = torch.device("cpu")
COLUMN = ((0.1,), (0.2,))


@pytest.mark.parametrize(
    ("policy", "kind", "shape"),
    [
        (PAPER, POLYNOMIAL, (1, 8)),
        (Table((1.0, 2.0), (1.0, 3.0)), TABLE, (1, 4)),
        (LogLinear(0.1, 0.2, 0.3), LOG_LINEAR, (1, 5)),
        (LogLinear(COLUMN, 0.2, torch.ones(2, 1)), LOG_LINEAR, (2, 5)),
        (LengthScaled.llama4(), LENGTH, (1, 6)),
        (Constant(torch.ones(1, 2, 1)), LENGTH, (2, 6)),
        (PerHead([LogLinear(0.1), LogLinear(0.2), LogLinear(0.3)]), LOG_LINEAR, (3, 5)),
        (detach(PAPER), POLYNOMIAL, (1, 8)),
        (EntropyTarget(1.0), SOLVED, (1, 2)),
        (PerHead([EntropyTarget(0.5), EntropyTarget(1.0)]), SOLVED, (2, 2)),
        (Beyond(80), BEYOND, (1, 4)),
    ],
)
def test_a_kernel_evaluates_it(policy, kind, shape):
    found = kernel_policy(policy, CPU)
    assert (kernel_kind(policy), found.kind, tuple(found.numbers.shape)) == (kind, kind, shape)
    assert found.numbers.dtype == torch.float32
    assert found.detached == (policy == detach(PAPER))
    assert kernel_policy(policy, CPU).numbers is found.numbers  # made once


@pytest.mark.parametrize(
    "policy",
    [
        EntropyTarget(torch.ones(2, 1, requires_grad=True)),
        PerHead([LogLinear(0.1), Constant(2.0)]),
        PerHead([Table((1.0, 2.0), (1.0, 2.0)), Table((1.0, 2.0, 3.0), (1.0, 2.0, 3.0))]),
        Constant(torch.ones(2, 3, 1)),  # of each sequence
        LogLinear(torch.zeros(2, 1, requires_grad=True)),
        Polynomial(tuple(0.1 for _ in range(100))),
        lambda stats: stats.entropy,
    ],
)
def test_no_kernel_evaluates_it(policy):
    assert kernel_kind(policy) == 0
    assert kernel_policy(policy, CPU) is None


@pytest.mark.parametrize("policy", [LogLinear(COLUMN), Constant(torch.ones(2, 1)), PerHead([PAPER, PAPER])])
def test_no_kernel_evaluates_a_policy_of_other_heads_than_there_are(policy):
    assert kernel_policy(policy, CPU, heads=2) is not None
    assert kernel_policy(policy, CPU, heads=3) is None
    assert kernel_policy(policy, CPU, heads=1) is None


def test_numbers_follow_a_tensor_that_is_written_to():
    a = torch.zeros(2, 1)
    policy = LogLinear(a, 0.5)
    before = kernel_policy(policy, CPU).numbers
    a += 1
    assert numbers_of_now(policy) is None
    after = kernel_policy(policy, CPU).numbers
    assert before[:, 0].tolist() == [0, 0]
    assert after[:, 0].tolist() == [1, 1]
    assert numbers_of_now(policy) is after


def test_numbers_that_nobody_else_holds_are_kept():
    policy = LogLinear(torch.zeros(2, 1))
    keep_numbers(policy, CPU)
    assert numbers_of_now(policy) is kernel_policy(policy, CPU).numbers


def test_what_is_remembered_stays_behind_when_a_policy_is_copied():
    policy = LogLinear(0.1, 0.2, 0.3)
    kernel_policy(policy, CPU)
    for other in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert other == policy
        assert numbers_of_now(other) is None


def test_numbers_are_made_outside_of_inference_mode():
    policy = LogLinear(0.1, 0.2, 0.3)
    with torch.inference_mode():
        assert not kernel_policy(policy, CPU).numbers.is_inference()


def test_numbers_of_tensors_that_do_not_tell_of_writes_are_made_each_time():
    with torch.inference_mode():
        policy = LogLinear(torch.zeros(2, 1))
        before = kernel_policy(policy, CPU).numbers
        policy.a.fill_(1.0)
        assert kernel_policy(policy, CPU).numbers[:, 0].tolist() == [1.0, 1.0]
    assert before[:, 0].tolist() == [0.0, 0.0]
    assert numbers_of_now(policy) is None


def test_what_beta_may_be():
    assert beta_range(LogLinear(limit=1.0)) == pytest.approx((0.36788, 2.71828), 1e-4)
    assert beta_range(PerHead([PAPER, Constant(0.25), Constant(3.0)])) == (0.25, 3.0)
    assert beta_range(LengthScaled(1.0)) == (1e-12, 1.0)
    assert beta_range(Constant(torch.tensor(2.0))) == (1e-12, 1.0)
    assert constant_beta(Constant(2)) == 2.0
    assert constant_beta(Constant(torch.tensor(2.0))) is None
