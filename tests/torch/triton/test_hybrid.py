"""Packed documents in one fused call equal each document alone: statistics, beta·q, output and gradients.

By Triton's interpreter a tile is 16 queries and 16 keys; on a GPU the same tests run on the chip, and those that need
one run too.
"""

from itertools import accumulate, pairwise

import pytest
import torch

from sharpmax import PAPER, Constant, EntropyTarget, LengthScaled, LogLinear, Table, detach, reference_attention
from sharpmax.core.stats import RowStats
from sharpmax.torch import attention, attention_varlen, row_stats, varlen
from sharpmax.torch.documents import documents_of
from sharpmax.torch.policy_kinds import kernel_policy
from sharpmax.torch.triton import operators
from tests.torch.budgets import assert_within_budget, naive_attention
from tests.torch.kernels import DEVICE

NUMBERS = kernel_policy(PAPER, torch.device(DEVICE))
SIZES = {
    "one item": [1],
    "single items": [1, 1, 1],
    "on the borders of tiles": [16, 32, 16],
    "off them": [15, 18, 2, 40],
    "many in a tile, one over several": [3, 1, 5, 2, 1, 60, 4, 1],
    "one": [50],
}
EACH = pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
POLICIES = {
    "paper": PAPER,
    "detached": detach(PAPER),
    "table": Table((0.5, 2.0), (1.0, 3.0)),
    "plain": Constant(1.0),
    "constant": Constant(1.7),
    "by length": LengthScaled.ssmax(0.4),
    "by position": LengthScaled.llama4(floor_scale=4),
    "iterative": EntropyTarget(0.8),
}
NOTHING = dict.fromkeys(("mask", "bias", "sinks"))
STATISTICS = ("entropy", "logsumexp", "maximum")


def draw(*shape, seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)


def packed(sizes, dtype, *, heads=4, width=16, by_item=False):
    """Return query (1, H, T, D) of logits that PAPER sharpens, key and value of half as many heads; all need gradients.

    `by_item` lays them in memory as models do, the heads of an item side by side.
    """
    total = sum(sizes)
    shapes = [(1, n, total, width) for n in (heads, heads // 2, heads // 2)]
    tensors = [(2.0 if i == 0 else 1.0) * draw(*shape, seed=i, dtype=dtype) for i, shape in enumerate(shapes)]
    if by_item:
        tensors = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors]
    return [x.requires_grad_() for x in tensors]


def spans(sizes):
    return list(pairwise([0, *accumulate(sizes)]))


def bounds(sizes):
    documents = documents_of(sizes)
    return documents.starts.to(DEVICE), documents.ends.to(DEVICE)


def alone(function, tensors, sizes):
    """Return what a function of (query, key, …) gives for each document, end to end."""
    parts = [function(*(x[:, :, low:high] for x in tensors)) for low, high in spans(sizes)]
    return [torch.cat(of_one, dim=2) for of_one in zip(*parts, strict=True)]


def widened(tensors):
    return [x.detach().double().requires_grad_() for x in tensors]


def scored(parts, inputs):
    """Gradients of a sum of all parts, each with weights of its own."""
    loss = sum(
        (part.double() * draw(*part.shape, seed=9 + i, dtype=torch.float64)).sum() for i, part in enumerate(parts)
    )
    return torch.autograd.grad(loss, inputs)


def largest(*tensors):
    return max(x.detach().abs().max().item() for x in tensors)


def by_eager(q, k, *, extra=frozenset()):
    stats = row_stats(q, k, is_causal=True, implementation="eager", extra=extra)
    return [getattr(stats, name) for name in (*STATISTICS, *sorted(extra))]


@EACH
@pytest.mark.parametrize("by_item", [False, True], ids=["by head", "by item"])
def test_statistics_and_their_gradients(sizes, by_item):
    q, k, _ = packed(sizes, torch.float32, by_item=by_item)
    variance = frozenset({"variance"})
    entropy, logsumexp, _, maximum, spread = operators.row_statistics(
        q, k, None, *bounds(sizes), None, None, 0.25, None, 0, None, True
    )
    wide = widened((q, k))
    exact = alone(lambda *x: by_eager(*x, extra=variance), wide, sizes)
    naive = alone(lambda *x: by_eager(*x, extra=variance), (q, k), sizes)
    for name, got, *wanted in zip((*STATISTICS, "variance"), (entropy, logsumexp, maximum, spread), exact, naive,
                                  strict=True):  # fmt: skip
        assert_within_budget(
            name, got, *wanted, terms=4 * largest(exact[1], exact[2]) ** (2 if name == "variance" else 1)
        )
    chosen = [0, 1, 3]
    got = scored([(entropy, logsumexp, maximum, spread)[i] for i in chosen], (q, k))
    wanted = scored([exact[i] for i in chosen], wide)
    spent = scored([naive[i] for i in chosen], (q, k))
    for name, *gradients in zip(("dq", "dk"), got, wanted, spent, strict=True):
        assert_within_budget(name, *gradients, terms=largest(exact[1], exact[2]) ** 2 * max(1.0, largest(*wide)))


@EACH
@pytest.mark.parametrize("store", [False, True])
def test_beta_q_and_its_gradient(sizes, store):
    """Without `store` nothing but beta·q has a gradient to bring; with it, entropy and beta have theirs."""
    q, k, _ = packed(sizes, torch.float32, by_item=True)
    sharp, entropy, _, maximum, beta, _, _ = operators.sharpened_query(
        q, k, *bounds(sizes), 0.25, None, 0, *NUMBERS, store
    )
    assert maximum.numel() == (beta.numel() if store else 0)
    assert sharp.stride() == q.stride()

    def by_hand(q, k):
        entropy = row_stats(q, k, is_causal=True, implementation="eager").entropy
        beta = PAPER(RowStats(entropy=entropy, maximum=entropy))
        return beta.unsqueeze(-1) * q, entropy, beta

    wide = widened((q, k))
    exact, naive = alone(by_hand, wide, sizes), alone(by_hand, (q, k), sizes)
    for name, got, *wanted in zip(("sharp", "entropy", "beta"), (sharp, entropy, beta), exact, naive, strict=True):
        assert_within_budget(name, got, *wanted, terms=4 * largest(exact[0]))
    which = [0, 1, 2] if store else [0]
    gradients = [
        scored([parts[i] for i in which], inputs)
        for parts, inputs in (((sharp, entropy, beta), (q, k)), (exact, wide), (naive, (q, k)))
    ]
    for name, *of_one in zip(("dq", "dk"), *gradients, strict=True):
        assert_within_budget(name, *of_one, terms=largest(exact[0]) ** 2 * max(1.0, largest(*wide)))


@pytest.mark.filterwarnings("ignore::sharpmax.SilentPolicyWarning")
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("sizes", [SIZES["off them"], SIZES["many in a tile, one over several"]], ids=["few", "many"])
def test_attention_as_each_document_alone(sizes, policy, monkeypatch):
    """In one call: the batches are made to fail."""
    monkeypatch.setattr(varlen, "attention", None)
    tensors = packed(sizes, torch.float16, heads=2)
    marks = torch.tensor([0, *accumulate(sizes)], device=DEVICE)
    flat = [x.squeeze(0) for x in tensors]
    options = {"is_causal": True, "policy": policy, "implementation": "hybrid"}
    output, stats = attention_varlen(*flat, marks, return_stats=True, **options)
    bare = attention_varlen(*flat, marks, **options)
    with torch.no_grad():
        without_gradient = attention_varlen(*flat, marks, **options)
    assert torch.equal(output, bare)
    assert torch.equal(without_gradient, bare)

    given = {"scale": None, "softcap": None, "window": None, "is_causal": True, "policy": policy}

    def by_hand(q, k, v):
        out, stats = naive_attention({"query": q, "key": k, "value": v, **NOTHING}, given)
        return out, stats.inverse_temperature, stats.entropy, stats.count

    wide = widened(tensors)
    exact, naive = alone(by_hand, wide, sizes), alone(by_hand, tensors, sizes)
    assert_within_budget("output", output[None], exact[0].double(), naive[0])
    found = (stats.inverse_temperature, stats.entropy, stats.count)
    assert_within_budget("entropy", found[1][None], exact[2].double(), naive[2], terms=30.0)
    assert torch.equal(found[2][None].double(), exact[3].double())
    low = naive[0]
    if isinstance(policy, EntropyTarget):  # whose gradient through a beta solved for is the contract's to judge
        low = alone(lambda *x: [attention(*x, **options)], tensors, sizes)[0]
    gradients = [scored([out], inputs) for out, inputs in ((bare[None], tensors), (exact[0], wide), (low, tensors))]
    for name, *of_one in zip(("dq", "dk", "dv"), *gradients, strict=True):
        assert_within_budget(name, *of_one, terms=30.0 * max(1.0, largest(*wide[1:]) ** 2))


@pytest.mark.parametrize("policy", [PAPER, detach(PAPER), Constant(1.0)], ids=["paper", "detached", "plain"])
def test_one_document_is_a_row_bit_by_bit(policy):
    tensors = packed([50], torch.float16)
    options = {"is_causal": True, "policy": policy, "implementation": "hybrid"}
    row, stats = attention(*tensors, return_stats=True, **options)
    output, found = attention_varlen(
        *(x.squeeze(0) for x in tensors), torch.tensor([0, 50], device=DEVICE), return_stats=True, **options
    )
    if DEVICE == "cpu":  # on a GPU PyTorch's second pass is another kernel
        assert torch.equal(output, row[0])
        assert all(
            torch.equal(*pair) for pair in zip(*(scored([x], tensors) for x in (row, output[None])), strict=True)
        )
    for name in (*STATISTICS, "count", "inverse_temperature"):
        assert torch.equal(getattr(found, name), getattr(stats, name)[0]), name


def test_the_sharpened_query_of_one_document_is_a_row_s_bit_by_bit():
    q, k, _ = packed([50], torch.float32)
    calls = [(bounds([50]), True), ((None, None), True), (bounds([50]), False), ((None, None), False)]
    found = [operators.sharpened_query(q, k, *of, 0.25, None, 0, *NUMBERS, store) for of, store in calls]
    gradients = [scored([sharp], (q, k)) for sharp, *_ in found]
    for kept, gradient in zip(found[1:], gradients[1:], strict=True):
        for at in (0, 1, 4, 5, 6):  # all but logsumexp and maximum, which are not stored
            assert torch.equal(kept[at], found[0][at])
        assert all(torch.equal(*pair) for pair in zip(gradient, gradients[0], strict=True))


def test_a_neighbour_changes_nothing():
    sizes = SIZES["off them"]
    tensors = [x.detach() for x in packed(sizes, torch.float16)]
    marks = torch.tensor([0, *accumulate(sizes)], device=DEVICE)
    options = {"is_causal": True, "implementation": "hybrid"}
    before = attention_varlen(*(x.squeeze(0) for x in tensors), marks, **options)
    low, high = spans(sizes)[1]
    for x in tensors:
        x[:, :, low:high] *= 100
    after = attention_varlen(*(x.squeeze(0) for x in tensors), marks, **options)
    kept = [i for i in range(sum(sizes)) if not low <= i < high]
    assert torch.equal(after[:, kept], before[:, kept])
    assert not torch.equal(after, before)


@pytest.mark.parametrize(
    "change",
    [{"window": 8}, {"is_causal": False}, {"implementation": "triton"}, {"scale": -1.0, "implementation": None}],
    ids=["window", "not causal", "another implementation", "a scale that the kernels refuse"],
)
def test_what_is_refused_goes_in_batches(change, monkeypatch):
    monkeypatch.setattr(varlen, "attend_packed", None)
    tensors = [x.detach().squeeze(0) for x in packed([5, 7], torch.float16)]
    options = {"is_causal": True, "implementation": "hybrid", **change}
    if "window" in change:
        options["implementation"] = None
    output = attention_varlen(*tensors, torch.tensor([0, 5, 12], device=DEVICE), **options)
    assert output.shape == tensors[0].shape


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("detached", [False, True])
def test_the_operators_hold_their_contract(store, detached):
    sizes = [3, 17]
    q, k, _ = packed(sizes, torch.float32, heads=2, by_item=True)
    policy = NUMBERS._replace(detached=detached)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    arguments = (q, k, *bounds(sizes), 0.25, None, 0, *policy, store)
    torch.library.opcheck(torch.ops.sharpmax.sharpened_query.default, arguments, test_utils=checks)

    def call(q, k):
        return operators.sharpened_query(q, k, *arguments[2:])[0]

    torch._dynamo.reset()
    whole = torch.compile(call, fullgraph=True, backend="aot_eager")
    gradients = [scored([function(q, k)], q if detached else (q, k)) for function in (whole, call)]
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))
    if store and not detached:
        arguments = (q, k, None, *bounds(sizes), None, None, 0.25, None, 0, None, False)
        torch.library.opcheck(torch.ops.sharpmax.row_statistics.default, arguments, test_utils=checks)


def test_the_maximum_of_documents_has_no_gradient_and_says_so():
    q, k, _ = packed([3, 17], torch.float32, heads=2, by_item=True)
    maximum = operators.sharpened_query(q, k, *bounds([3, 17]), 0.25, None, 0, *NUMBERS, True)[3]
    with pytest.raises(NotImplementedError, match="packed documents"):
        maximum.sum().backward()


def test_sizes_as_bounds():
    documents = documents_of([2, 0, 3])
    assert documents.cumulative.tolist() == [0, 2, 5]
    assert documents.starts.tolist() == [0, 0, 2, 2, 2]
    assert documents.ends.tolist() == [2, 2, 5, 5, 5]
    assert documents.longest == 3
    assert all(x.dtype == torch.int32 for x in documents[:3])


LIKE_CLRS = [33, 700, 64, 128, 1, 1934, 65, 191, 63, 129, 40, 512]
"""Shorter than a tile of the kernels, as long, longer, and over many."""


@pytest.mark.gpu
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize(
    "policy",
    [PAPER, detach(PAPER), Constant(1.0), LengthScaled.ssmax(0.4)],
    ids=["paper", "detached", "plain", "ssmax"],
)
def test_the_whole_path_on_the_gpu(policy, width, monkeypatch):
    """Unasked, in bfloat16: no worse than twice the same documents one by one, against float64."""
    tensors = packed(LIKE_CLRS, torch.bfloat16, heads=6, width=width, by_item=True)
    marks = torch.tensor([0, *accumulate(LIKE_CLRS)], device="cuda")
    options = {"is_causal": True, "policy": policy}
    wide = widened(tensors)
    exact = alone(lambda *x: [attention(*x, implementation="chunked", **options)], wide, LIKE_CLRS)[0]
    low = alone(lambda *x: [attention(*x, implementation="hybrid", **options)], tensors, LIKE_CLRS)[0]
    monkeypatch.setattr(varlen, "attention", None)
    got = attention_varlen(*(x.squeeze(0) for x in tensors), marks, **options)[None]
    assert (got - exact).norm() <= 2 * (low - exact).norm()
    assert (low - exact).norm() <= 1e-2 * exact.norm()
    gradients = [scored([out], inputs) for out, inputs in ((got, tensors), (exact, wide), (low, tensors))]
    for name, ours, wanted, theirs in zip(("dq", "dk", "dv"), *gradients, strict=True):
        assert (ours - wanted).norm() <= 2 * (theirs - wanted).norm(), name
        assert (theirs - wanted).norm() <= 2e-2 * wanted.norm(), name


@pytest.mark.gpu
def test_gradients_lie_as_their_tensors_do_on_the_gpu():
    tensors = packed(LIKE_CLRS, torch.bfloat16, heads=6, width=64, by_item=True)
    marks = torch.tensor([0, *accumulate(LIKE_CLRS)], device="cuda")
    output = attention_varlen(*(x.squeeze(0) for x in tensors), marks, is_causal=True)
    assert output.transpose(0, 1).is_contiguous()
    for x, gradient in zip(tensors, torch.autograd.grad(output.float().square().sum(), tensors), strict=True):
        assert gradient.stride()[1:] == x.stride()[1:]


@pytest.mark.parametrize(
    "policy", [LogLinear(a=8.0, limit=10.0), Table((0.5, 1.0), (1.0, 5000.0))], ids=["card", "table"]
)
def test_a_large_beta_stays_within_float16(policy):
    """beta·q would be inf: products are lowered, and the scale raised."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (20 * torch.randn(1, 2, 24, 16, generator=generator).to(DEVICE, torch.float16) for _ in range(3))
    with torch.no_grad():
        output = attention(q, k, v, policy=policy, implementation="hybrid")
    wanted = reference_attention(*(x.double() for x in (q, k, v)), policy=policy)
    assert (output.double() - wanted).abs().max() <= 0.02 * wanted.abs().max()
