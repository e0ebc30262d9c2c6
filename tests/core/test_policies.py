"""What each policy computes, needs, refuses; and that its numbers learn."""

import copy
import math
import pickle
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sharpmax
from sharpmax import (
    PAPER,
    Beyond,
    Constant,
    EntropyTarget,
    LengthScaled,
    LogLinear,
    PerHead,
    PerLayer,
    Polynomial,
    RowStats,
    SilentPolicyWarning,
    Table,
    detach,
    row_stats,
    softmax,
)

PLAIN = Constant(1.0)


def rows_of_length(n, position=None):
    return RowStats(count=np.asarray(n, float), maximum=np.zeros(np.shape(n)), position=position)


def test_ssmax_is_s_log_n():
    np.testing.assert_allclose(LengthScaled.ssmax(0.5, b=0.1)(rows_of_length([2, 100])), 0.5 * np.log([2, 100]) + 0.1)


def test_log_n_is_one_up_to_the_reference_and_grows_beyond():
    np.testing.assert_allclose(LengthScaled.log_n(512)(rows_of_length([1, 512, 512**2])), [1, 1, 2])


def test_llama4_and_ministral_step_with_the_position():
    for policy, position, step in (
        (LengthScaled.llama4(), [0.0, 8190, 8191, 16382, 16383], [1, 1, 2, 2, 3]),
        (LengthScaled.ministral(), [0.0, 16383, 16384, 32768], [1, 1, 2, 3]),
    ):
        beta = policy(rows_of_length(np.ones(len(position)), np.array(position)))
        np.testing.assert_allclose(beta, 1 + 0.1 * np.log(step), err_msg=str(policy))


def test_a_step_is_where_it_belongs_in_a_compiled_graph():
    """XLA multiplies by 1/41 there, and 41/41 was less than 1: a step too late, at every multiple."""
    position = np.arange(1200, dtype=np.float32)
    for reference in (41.0, 47.0, 8192.0 / 3, 0.1):
        policy = LengthScaled.ministral(reference, scale=1.0)
        there = jax.jit(lambda place, policy=policy: policy(RowStats(position=place, maximum=place)))(position)
        expected = policy(RowStats(position=position, maximum=position))
        np.testing.assert_allclose(np.asarray(there), expected, rtol=1e-6, err_msg=str(policy))
        if reference == 41.0:
            np.testing.assert_allclose(expected, 1 + np.log(1 + np.arange(1200) // 41), rtol=1e-6)


def test_a_polynomial_with_a_domain_says_where_it_switches_itself_off():
    """It stays plain up to the end of the domain, where H is clamped, and so beyond."""
    for domain, silent in (((0.5, 7.0), PAPER.silent_above), ((0.5, 5.0), None), ((6.5, 9.0), None), (None, 5.9445)):
        policy = Polynomial(PAPER.coefficients, domain=domain)
        assert policy.silent_above == (None if silent is None else pytest.approx(silent, abs=1e-4)), domain
    with pytest.warns(SilentPolicyWarning, match=r"5\.945"):
        stats = softmax(np.zeros(1000), Polynomial(PAPER.coefficients, domain=(0.5, 7.0)), return_stats=True)[1]
    assert stats.inverse_temperature == 1
    line = Polynomial((-1.0, 3.0), domain=(0.5, 4.0))
    assert line.silent_above == pytest.approx(2)


def test_yarn_is_a_constant():
    assert LengthScaled.yarn(4.0) == Constant((0.1 * math.log(4) + 1) ** 2)
    assert LengthScaled.yarn(1.0) == PLAIN


def test_a_position_is_not_invented():
    with pytest.raises(ValueError, match="only attention knows"):
        softmax(np.zeros((2, 8)), LengthScaled.llama4())


def test_log_linear_is_its_formula_and_clips():
    policy = LogLinear(a=0.1, b=0.2, c=0.3, n0=128)
    stats = RowStats(entropy=np.asarray(2.0), count=np.asarray(256.0))
    np.testing.assert_allclose(policy(stats), np.exp(0.1 + 0.2 * np.log(2) + 0.3))
    np.testing.assert_allclose(LogLinear(a=9.0)(stats), np.exp(1.5))
    np.testing.assert_array_equal(LogLinear()(stats), 1.0)


def test_beyond_leaves_rows_alone_that_average_or_see_few_keys():
    stats = RowStats(entropy=np.array([0.5, 4.0, np.log(16401.0)]), count=np.full(3, 16401.0))
    grown, share = np.log(16401 / 80), 1 - 4 / np.log(16401)
    np.testing.assert_allclose(Beyond(80)(stats), [1.0, 1 + grown * share * (1 - 2 / 4), 1.0], atol=1e-12)
    np.testing.assert_allclose(Beyond(80, 0.5, 0.0, 2)(stats)[1], 1 + 0.5 * grown * share**2)


def test_beyond_is_plain_up_to_the_trained_length_and_log_n_without_its_gates():
    counts = np.array([0.0, 1.0, 40.0, 80.0])
    np.testing.assert_array_equal(Beyond(80, 3.0, 0.0)(RowStats(entropy=np.zeros(4), count=counts)), 1.0)
    counts = np.array([1.0, 80.0, 500.0, 20000.0])
    ours = Beyond(80, 1 / np.log(80), 0.0, 0)(RowStats(count=counts))
    np.testing.assert_allclose(ours, LengthScaled.log_n(80)(RowStats(count=counts)))


@given(st.floats(0, 12))
def test_a_table_interpolates_and_is_flat_outside(H):
    h, b = (0.5, 1.0, 4.0, 6.0), (1.0, 1.5, 1.5, 9.0)
    np.testing.assert_allclose(Table(h, b)(RowStats(entropy=np.asarray(H))), np.interp(H, h, b), rtol=1e-12)


def test_a_polynomial_with_a_domain_is_clamped_to_it():
    wild = Polynomial((1.0, 0.0), domain=(1.0, 3.0))
    np.testing.assert_array_equal(wild(RowStats(entropy=np.array([0.4, 0.7, 2.0, 50.0]))), [1, 1, 2, 3])
    assert wild.fitted_range == {"entropy": (1.0, 3.0)}
    assert wild.silent_above is None


def test_one_array_field_serves_many_heads(library):
    logits = np.random.default_rng(0).normal(size=(2, 3, 4, 60))
    members = [Constant(1.0), Constant(2.0), Constant(5.0)]
    stacked = Constant(library.array([[1.0], [2.0], [5.0]]))
    expected = library.numpy(softmax(library.array(logits), PerHead(members)))
    np.testing.assert_allclose(library.numpy(softmax(library.array(logits), stacked)), expected, atol=1e-15)


def test_per_head_mixes_any_policies(library):
    logits = np.random.default_rng(0).normal(size=(2, 4, 5, 200)) * 2
    members = (PAPER, EntropyTarget(0.5), LengthScaled.log_n(16), Constant(1.0))
    weights = library.numpy(softmax(library.array(logits), PerHead(members)))
    for head, policy in enumerate(members):
        np.testing.assert_allclose(weights[:, head], softmax(logits[:, head], policy), atol=1e-12)
    assert PerHead(members).needs == {"entropy", "variance", "count"}


def test_per_head_refuses_another_number_of_heads():
    with pytest.raises(ValueError, match="holds 2 policies"):
        softmax(np.zeros((1, 3, 4, 5)), PerHead((PLAIN, PLAIN)))


def test_per_layer_must_be_resolved():
    policy = PerLayer((PLAIN, PerHead((PAPER, PLAIN))))
    with pytest.raises(ValueError, match="for_layer"):
        softmax(np.zeros((2, 3)), policy)
    with pytest.raises(ValueError, match="for_layer"):  # as many layers as no axis of the rows is long
        softmax(np.zeros((1, 6, 5, 5)), PerLayer((PLAIN,) * 30))
    assert policy.for_layer(0) is PLAIN
    assert policy.for_layer(1).policies == (PAPER, PLAIN)
    with pytest.raises(ValueError, match="got layer 2"):
        policy.for_layer(2)


def test_a_policy_that_needs_only_the_length_computes_nothing_else(monkeypatch):
    from sharpmax.core import softmax as module

    def refuse(*args, **kwargs):
        raise AssertionError("a pass over the logits was made")

    monkeypatch.setattr(module.StreamState, "of_shifted", refuse)
    softmax(np.zeros((2, 8)), LengthScaled.log_n(4))
    softmax(np.zeros((2, 8)), PLAIN)
    with pytest.raises(AssertionError, match="pass over the logits"):
        softmax(np.zeros((2, 8)), PAPER)


def test_a_plain_callable_is_a_policy_too():
    logits = np.random.default_rng(0).normal(size=(3, 50))
    weights, stats = softmax(logits, lambda stats: 1 + stats.variance + stats.count / 100, return_stats=True)
    expected = row_stats(logits, extra=["variance"])
    np.testing.assert_allclose(stats.inverse_temperature, 1 + expected.variance + 0.5)
    np.testing.assert_allclose(weights.sum(-1), 1)


BAD = [
    (lambda: Constant(-1.0), ValueError, "at least 0"),
    (lambda: Constant(math.nan), ValueError, "finite"),
    (lambda: Constant(1e39), ValueError, "at most 1e\\+18"),
    (lambda: Constant("2"), TypeError, "a number"),
    (lambda: Constant(object()), TypeError, "a number"),
    (lambda: Constant(1j), TypeError, "a number"),
    (lambda: Constant(PLAIN), TypeError, "a number"),
    (lambda: Constant([]), ValueError, "at least one number"),
    (lambda: Constant([[1.0], [1.0, 2.0]]), ValueError, "rows of one length"),
    (lambda: Constant(np.array([[1.0], [-2.0]])), ValueError, "at least 0"),
    (lambda: Polynomial(2.0), ValueError, "sequence of numbers"),
    (lambda: Polynomial(np.ones(0)), ValueError, "sequence of numbers"),
    (lambda: Polynomial((1.0,), domain=3.0), ValueError, "low, high"),
    (lambda: Polynomial((1.0,), threshold=(1.0,)), TypeError, "must be a number"),
    (lambda: LengthScaled(1.0, reference=[1.0]), TypeError, "must be a number"),
    (lambda: EntropyTarget(0.5, maximum=1e300), ValueError, "at most 1e\\+18"),
    (lambda: softmax(np.zeros(3), lambda stats: None), TypeError, "a policy returns"),
    (lambda: softmax(np.zeros((2, 3)), Constant(np.ones(5))), ValueError, "do not broadcast to the rows' \\(2,\\)"),
    (lambda: softmax(torch.zeros(2, 3), Constant(torch.ones(5))), ValueError, "do not broadcast"),
    (lambda: softmax(jnp.zeros((2, 3)), LogLinear(a=jnp.ones(5))), ValueError, "do not broadcast"),
    (lambda: Constant(np.array([1, 2])), TypeError, "floating"),
    (lambda: Polynomial(()), ValueError, "at least one number"),
    (lambda: Polynomial((1.0, None)), TypeError, "a number"),
    (lambda: Polynomial((1.0,), domain=(3.0, 1.0)), ValueError, "low < high"),
    (lambda: EntropyTarget(0.0), ValueError, "greater than 0"),
    (lambda: EntropyTarget(0.5, maximum=0.5), ValueError, "at least 1"),
    (lambda: LengthScaled(1.0, of="width"), ValueError, "one of count, length, position"),
    (lambda: LengthScaled.log_n(1), ValueError, "log_n.reference must be finite and greater than 1, got 1"),
    (lambda: LengthScaled.log_n("16"), TypeError, "must be a number, got '16'"),
    (lambda: LengthScaled.log_n(math.inf), ValueError, "must be finite"),
    (lambda: LengthScaled.yarn(0.5), ValueError, "at least 1"),
    (lambda: LengthScaled.yarn(None), TypeError, "must be a number, got None"),
    (lambda: Table((1.0,), (1.0,)), ValueError, "two knots"),
    (lambda: Table((1.0, 1.0), (1.0, 2.0)), ValueError, "increase strictly"),
    (lambda: Table((1.0, 2.0), (2.0, 1.0)), ValueError, "not decrease"),
    (lambda: Table((1.0, 2.0), (0.0, 1.0)), ValueError, "at least"),
    (lambda: PerHead(()), ValueError, "at least one policy"),
    (lambda: PerLayer((PAPER, "paper")), TypeError, "holds policies"),
    (lambda: detach(None), TypeError, "holds policies"),
    (lambda: softmax(np.zeros(3), None), TypeError, "policy must be"),
    (lambda: softmax(np.zeros(3), "paper"), TypeError, "policy must be"),
    (lambda: softmax(np.zeros(3), EntropyTarget), TypeError, "policy must be"),
    (lambda: softmax(np.zeros(3), lambda stats: -stats.entropy), ValueError, "negative inverse temperature"),
    (lambda: softmax(np.zeros((2, 3)), lambda stats: np.ones(5)), ValueError, "broadcast"),
]


@pytest.mark.parametrize(("make", "error", "message"), BAD)
def test_bad_policies_are_refused_in_one_line(make, error, message):
    with pytest.raises(error, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_stranger_cannot_take_the_name_of_a_policy_that_cards_know():
    with pytest.raises(TypeError, match="choose another"):
        type("Constant", (sharpmax.Policy,), {"__module__": "elsewhere"})
    assert sharpmax.Policy.known["Constant"] is Constant


def test_a_head_s_arrays_that_do_not_fit_are_named_with_their_shapes():
    for member in (Constant(np.ones(3)), Table((1.0, 2.0), np.ones((2, 3))), detach(LogLinear(np.ones((2, 1))))):
        with pytest.raises(ValueError, match=r"arrays of \w+ have shapes .* to the rows' \(1, 5\) of one head"):
            softmax(np.zeros((1, 2, 5, 7)), PerHead([member, PLAIN]))


@pytest.mark.parametrize("betas", [
    np.array([2.0, 1.0], np.float32), np.array([[[2.0], [3.0]], [[1.0], [4.0]]]), (((2.0,), (3.0,)), ((1.0,), (4.0,))),
])  # fmt: skip
def test_no_head_s_table_may_fall(betas):
    with pytest.raises(ValueError, match="must not decrease"):
        Table((1.0, 2.0), betas)


def test_a_polynomial_that_acts_on_no_row_is_silent_above_nothing():
    assert Polynomial((-1.0, 0.5), threshold=-1.0).silent_above is None  # falls through 1 at H = -0.5


def test_silence_is_each_head_s_own():
    """A flat row in a head whose policy is not silent raises no warning."""
    logits = np.random.default_rng(0).normal(size=(1, 2, 1, 5000)) * np.array([30.0, 0.01])[:, None, None]
    mixed = PerHead((PAPER, EntropyTarget(0.5)))
    assert not mixed.silent_on(row_stats(logits)).any()
    softmax(logits, mixed, return_stats=True)
    with pytest.warns(sharpmax.SilentPolicyWarning):
        softmax(logits[:, ::-1], mixed, return_stats=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_huge_beta_is_hard_attention(dtype):
    logits = np.array([3.0, 2.0, -np.inf, 3.0], dtype)
    for policy in (Constant(1e18), lambda stats: np.inf, EntropyTarget(0.1, maximum=1e18)):
        np.testing.assert_array_equal(softmax(logits, policy), [0.5, 0, 0, 0.5])


def test_statistics_come_back_for_policies_that_still_learn():
    rows = np.random.default_rng(0).normal(size=(2, 9))
    expected = softmax(rows, Polynomial((0.3, 1.0)), return_stats=True)[1].inverse_temperature
    leaf = torch.tensor(0.3, requires_grad=True, dtype=torch.float64)
    _, traced = jax.jit(lambda c: softmax(jnp.asarray(rows), Polynomial((c, 1.0)), return_stats=True))(0.3)
    _, learned = softmax(torch.tensor(rows), Polynomial((leaf, 1.0)), return_stats=True)
    np.testing.assert_allclose(traced.inverse_temperature, expected, rtol=1e-5)
    np.testing.assert_allclose(learned.inverse_temperature.detach(), expected, rtol=1e-12)


LEARNABLE = [
    lambda x: Table((0.5, 1.5, 3.0), (1.0, 1.0 + x, 2.0)),
    lambda x: Constant(1 + x),
    lambda x: Polynomial((x, 1.0 + x)),
    lambda x: EntropyTarget(0.5 + x),
    lambda x: LengthScaled(slope=0.3 + x, offset=x),
    lambda x: LogLinear(a=x, b=x, c=x),
    lambda x: PerHead((Constant(1 + x), LogLinear(c=x))),
]


@pytest.mark.parametrize("make", LEARNABLE)
def test_numeric_fields_learn_by_gradient_in_both_frameworks(make):
    logits = np.random.default_rng(0).normal(size=(3, 2, 4, 30)) * 2
    x, step = 0.2, 1e-5
    difference = (softmax(logits, make(x + step)) ** 2).sum() - (softmax(logits, make(x - step)) ** 2).sum()
    leaf = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    (in_torch,) = torch.autograd.grad((softmax(torch.tensor(logits), make(leaf)) ** 2).sum(), leaf)
    np.testing.assert_allclose(in_torch.item(), difference / (2 * step), rtol=1e-4)
    with jax.enable_x64(True):
        in_jax = jax.jit(jax.grad(lambda x: (softmax(jnp.asarray(logits), make(x)) ** 2).sum()))(x)
    np.testing.assert_allclose(in_torch.item(), float(in_jax), rtol=1e-9)


def test_freeze_turns_arrays_into_numbers():
    half = torch.tensor([[0.25], [0.5]], dtype=torch.bfloat16, requires_grad=True)
    policy = LogLinear(a=half, b=np.float32(2.0)).freeze()
    assert policy.a == ((0.25,), (0.5,))
    assert policy.b == 2.0
    sharpmax.softmax(np.zeros((1, 2, 3, 4)), policy)


WITH_ARRAYS = {
    "Constant": Constant,
    "EntropyTarget": EntropyTarget,
    "LengthScaled": LengthScaled.ssmax,
    "LogLinear": lambda a: LogLinear(a=a),
    "Polynomial": lambda a: Polynomial((a, a)),
    "Polynomial, stacked": lambda a: Polynomial(a),
    "Table": lambda a: Table((1.0, 2.0), (a, a)),
    "PerHead": lambda a: PerHead((PLAIN, Constant(a))),
    "PerLayer": lambda a: PerLayer((PLAIN, Constant(a))),
    "Detached": lambda a: detach(Constant(a)),
}


@pytest.mark.parametrize("asarray", [np.asarray, jnp.asarray, torch.tensor], ids=["numpy", "jax", "torch"])
@pytest.mark.parametrize("make", WITH_ARRAYS.values(), ids=WITH_ARRAYS)
def test_policies_with_arrays_are_equal_by_their_numbers_and_have_no_hash(make, asarray):
    column = [[0.5], [0.25]]  # as exact in half the bits
    policy = make(asarray(column))
    assert policy == make(asarray(column))
    assert policy == make(np.asarray(column, np.float32)) == policy.freeze()
    assert policy != make(asarray([[0.5], [0.75]]))
    assert policy != make(asarray([[0.5], [0.25], [0.25]]))
    assert policy != make(asarray([0.5, 0.25]))
    assert policy != PAPER
    with pytest.raises(TypeError, match=r"holds arrays, which may change: freeze\(\) it before it is hashed"):
        hash(policy)
    assert hash(policy.freeze()) == hash(make(asarray(column)).freeze())


def test_a_table_that_falls_while_it_learns_can_be_compared():
    falling, flat = (PerLayer((Table((1.0, 2.0), torch.tensor([2.0, end])),)) for end in (1.0, 2.0))
    with pytest.raises(ValueError, match="must not decrease"):
        falling.freeze()
    assert falling == falling != flat


def test_policies_of_numbers_are_equal_and_hashed_by_them():
    assert len({PAPER, Polynomial(PAPER.coefficients), Constant(2.0), Constant(np.float64(2)), Constant(2)}) == 2
    assert Constant(2.0) != Constant(3.0)
    assert Constant(torch.tensor(2.0)) == Constant(2.0) != 2.0
    assert all(kind.__eq__ is sharpmax.Policy.__eq__ for kind in sharpmax.Policy.known.values())


def test_a_policy_of_a_users_own_is_equal_to_itself_or_as_it_says(monkeypatch):
    monkeypatch.setattr(sharpmax.Policy, "known", dict(sharpmax.Policy.known))  # which every class enters

    class Own(sharpmax.Policy):
        def __call__(self, stats, stats_at=None):
            return np.ones(())

    @dataclass(frozen=True)
    class Numbered(Own):
        number: float

    own = Own()
    assert own == own != Own()
    assert len({own, own, Own()}) == 2
    assert Numbered(1.0) == Numbered(1.0) != Numbered(2.0)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_the_array_of_a_copy_is_as_unchangeable_as_the_policys(copied):
    policy = copied(Constant(np.ones((2, 1))))
    with pytest.raises(ValueError, match="read-only"):
        policy.inverse_temperature[0] = 9
    assert policy == Constant(np.ones((2, 1)))


def test_a_policy_that_is_no_dataclass_is_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(sharpmax.Policy, "known", dict(sharpmax.Policy.known))

    class Bare(sharpmax.Policy):
        def __call__(self, stats, stats_at=None):
            return stats.entropy

    for policy in (Bare(), PerHead([Bare()])):
        with pytest.raises(TypeError, match="Bare is no dataclass"):
            policy.save(tmp_path / "card.json")


@pytest.mark.parametrize("rows", [np.zeros(3), torch.zeros(3)], ids=["numpy", "torch"])
def test_a_statistic_that_a_policy_reads_and_does_not_name_is_said(monkeypatch, rows):
    monkeypatch.setattr(sharpmax.Policy, "known", dict(sharpmax.Policy.known))

    class Forgetful(sharpmax.Policy):
        def __call__(self, stats, stats_at=None):
            return stats.count**0.5

    with pytest.raises(ValueError, match=r"Forgetful fails on a None .*`needs` does not name.*it names entropy"):
        softmax(rows, Forgetful())


@pytest.mark.parametrize("made", [np.array, lambda c: tuple(np.float64(x) for x in c), lambda c: list(map(float, c))])
def test_numbers_of_numpy_switch_themselves_off_as_others_do(made):
    again = Polynomial(made(PAPER.coefficients))
    assert again.silent_above == PAPER.silent_above
    with pytest.warns(sharpmax.SilentPolicyWarning):
        softmax(np.zeros(2000), again, return_stats=True)
    one_per_head = Polynomial(np.array(PAPER.coefficients)[:, None, None] * np.ones((1, 2, 1)))
    assert one_per_head.silent_above is None


@pytest.mark.parametrize("rows", [np.array, jnp.array])
def test_a_number_that_learns_in_pytorch_serves_rows_of_other_libraries(rows):
    logits = rows([0.0, 1.0, 2.0])
    for beta in (torch.tensor(2.0, requires_grad=True), torch.tensor(2.0, dtype=torch.bfloat16)):
        np.testing.assert_allclose(softmax(logits, Constant(beta)), softmax(logits, Constant(2.0)), rtol=1e-6)
