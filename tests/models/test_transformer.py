from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from sharpmax import PAPER, Constant
from sharpmax.models.mechanisms import LearnedSSMax, Selective, Sharpened
from sharpmax.models.transformer import (
    FARTHEST,
    LONGEST_ROW,
    PRECISIONS,
    SORTED_BELOW,
    Transformer,
    float32_products,
    loss_of,
)

MODEL = Transformer(11, layers=2, width=32, heads=4)


def run(model, seeds, tokens, **options):
    with torch.no_grad():
        return model(model.named(model.init(seeds)), tokens, **options)


def tokens(seeds=1, batch=2, length=12):
    return torch.randint(11, (seeds, batch, length), generator=torch.Generator().manual_seed(0))


def as_written(params, ids):
    """One seed, one sequence, straight from the docstring: a bias of -m·(i - j), dense weights."""
    x = params["embedding"][0, ids]
    length, heads = len(ids), MODEL.heads
    apart = torch.arange(length)[:, None] - torch.arange(length)
    slopes = torch.tensor([0.0, 0.0, 2.0**-4, 2.0**-8])
    bias = (-slopes[:, None, None] * apart).masked_fill(apart < 0, -torch.inf)
    for layer in range(MODEL.layers):
        w = {n.removeprefix(f"layers.{layer}."): p[0] for n, p in params.items() if n.startswith(f"layers.{layer}.")}

        def norm(x, gain):
            return x * (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).rsqrt() * gain

        q, k, v = (norm(x, w["attention.norm"]) @ w["attention.qkv"]).view(length, 3, heads, 8).permute(1, 2, 0, 3)
        out = torch.softmax(q @ k.transpose(1, 2) / 8**0.5 + bias, -1) @ v
        x = x + out.transpose(0, 1).reshape(length, 32) @ w["attention.out"]
        x = x + functional.gelu(norm(x, w["mlp.norm"]) @ w["mlp.up"]) @ w["mlp.down"]
    return norm(x, params["norm"][0]) @ params["unembedding"][0]


@pytest.mark.parametrize("streaming", [True, False])
def test_it_computes_what_its_docstring_says(streaming):
    ids = tokens()
    for sequence, found in zip(ids[0], run(MODEL, [3], ids, streaming=streaming)[0], strict=True):
        expected = as_written(MODEL.named(MODEL.init([3])), sequence)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("streaming", [True, False])
def test_it_is_causal(streaming):
    ids = tokens()
    changed = ids.clone()
    changed[..., -1] = (changed[..., -1] + 1) % 11
    before, after = (run(MODEL, [0], given, streaming=streaming) for given in (ids, changed))
    torch.testing.assert_close(before[:, :, :-1], after[:, :, :-1])
    assert not torch.allclose(before[:, :, -1], after[:, :, -1])


def test_seeds_side_by_side_are_what_each_is_alone():
    ids = tokens(seeds=3)
    together = run(MODEL, [4, 7, 9], ids)
    for index, seed in enumerate((4, 7, 9)):
        torch.testing.assert_close(together[index], run(MODEL, [seed], ids[index : index + 1])[0])
    assert not torch.allclose(together[0], together[1])


@pytest.mark.parametrize("streaming", [True, False])
def test_places_asked_for_are_those_of_the_whole(streaming):
    ids = tokens(batch=3)
    at = torch.tensor([[[3, 7], [5, 6], [11, 4]]])
    whole = run(MODEL, [0], ids, streaming=streaming)
    found = run(MODEL, [0], ids, at=at, streaming=streaming)
    torch.testing.assert_close(found, whole.take_along_dim(at[..., None], 2))
    by_question = run(MODEL, [0], ids, at=at.unflatten(2, (1, 2)), streaming=streaming)
    torch.testing.assert_close(by_question[:, :, 0], found)


@pytest.mark.parametrize(
    ("positions", "slopes"), [("none", [0.0] * 4), ("alibi", [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])]
)
def test_positions_are_as_named(positions, slopes):
    model = replace(MODEL, positions=positions)
    assert model.slopes.tolist() == slopes
    ids = tokens()
    turned = run(model, [0], torch.cat((ids[..., :-1].flip(-1), ids[..., -1:]), -1), at=torch.full((1, 2, 1), 11))
    same = torch.allclose(turned, run(model, [0], ids, at=torch.full((1, 2, 1), 11)), atol=1e-4)
    assert not same  # a causal mask alone orders the keys of the layers below


def test_rope_sees_distances_alone_and_random_positions_increase():
    model = replace(MODEL, positions="rope")
    ids = tokens(seeds=2, batch=3)
    places = model.places(ids, 5)
    assert places.shape == ids.shape
    assert (places.diff(dim=-1) > 0).all()
    assert 0 < places.min() < places.max() < FARTHEST
    assert torch.equal(places, model.places(ids, 5))
    assert not torch.equal(places, model.places(ids, 6))
    at = torch.full((2, 3, 1), 11)
    near, far, other = (run(model, [0, 1], ids, at=at, places=p) for p in (places / 64, places / 64 + 100, places / 8))
    torch.testing.assert_close(near, far, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(near, other, atol=1e-2)
    dense = run(model, [0, 1], ids, at=at, places=places, streaming=False)
    torch.testing.assert_close(run(model, [0, 1], ids, at=at, places=places), dense, rtol=1e-4, atol=1e-4)
    assert MODEL.places(ids, 5) is None
    with pytest.raises(ValueError, match="'rope' needs them"):
        run(model, [0, 1], ids)


def test_positions_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="expected positions among half, alibi, none, rope, sorted, got 'sin'"):
        replace(MODEL, positions="sin")


def test_a_mechanism_acts_and_its_entropy_is_observed():
    seen = {}
    sharp = replace(MODEL, mechanism=Sharpened(Constant(3.0)))
    assert not torch.allclose(run(sharp, [0], tokens()), run(MODEL, [0], tokens()))
    run(sharp, [0], tokens(), observer=lambda layer, entropy: seen.update({layer: entropy}))
    plain = {}
    run(MODEL, [0], tokens(), observer=lambda layer, entropy: plain.update({layer: entropy}))
    assert {layer: entropy.shape for layer, entropy in seen.items()} == {0: (1, 2, 4, 12), 1: (1, 2, 4, 12)}
    assert (seen[0] <= plain[0] + 1e-6).all()


@pytest.mark.parametrize("streaming", [False, True])
def test_an_observer_of_a_mechanism_that_needs_every_query_is_told_of_all_they_marked(streaming):
    selective, seen = replace(MODEL, layers=1, mechanism=Selective()), []
    given = tokens(length=24)  # more than the queries that an observer is told of
    run(selective, [0], given, streaming=streaming, observer=lambda _, entropy: seen.append(entropy))
    weights = []

    class Kept(Selective):
        def weights(self, *arguments):
            weights.append(super().weights(*arguments))
            return weights[-1]

    run(replace(selective, mechanism=Kept()), [0], given, streaming=False)
    expected = torch.special.entr(weights[0]).sum(-1)[..., -seen[0].shape[-1] :]
    torch.testing.assert_close(seen[0], expected)


def test_every_mechanism_begins_with_the_same_weights():
    learned = replace(MODEL, mechanism=LearnedSSMax())
    ours, theirs = MODEL.named(MODEL.init([5])), learned.named(learned.init([5]))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert theirs["layers.1.mechanism.b"].shape == (1, 4, 1)
    torch.testing.assert_close(run(learned, [5], tokens()), run(MODEL, [5], tokens()))


@pytest.mark.parametrize("streaming", [True, False])
def test_bfloat16_rounds_and_no_more(streaming):
    model = replace(MODEL, mechanism=Sharpened(PAPER))
    exact = run(model, [0], tokens(), streaming=streaming)
    rounded = run(model, [0], tokens(), precision=PRECISIONS["bf16"], streaming=streaming)
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).norm() / exact.norm() < 8 * 2.0**-8  # two layers of four products each


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler, on itself
def test_a_compiled_block_is_the_same():
    model = replace(MODEL, mechanism=Sharpened(PAPER))
    block = torch.compile(model.block, dynamic=False, fullgraph=True)
    compiled = run(model, [0], tokens(), block=block, streaming=False)
    torch.testing.assert_close(compiled, run(model, [0], tokens(), streaming=False), rtol=1e-5, atol=1e-5)


def test_the_loss_of_each_seed_is_its_own():
    logits = torch.zeros(2, 3, 4, 11)
    logits[1, ..., 5] = 100.0
    answers = torch.full((2, 3, 4), 5)
    torch.testing.assert_close(loss_of(logits, answers), torch.tensor([torch.log(torch.tensor(11.0)), 0.0]))


def test_the_number_of_parameters_is_that_of_one_seed():
    assert MODEL.parameters == 2 * 11 * 32 + 32 + 2 * (2 * 32 + 12 * 32**2)


def test_precision_is_put_back():
    before = torch.get_float32_matmul_precision()
    with pytest.raises(ValueError, match="expected an even"), float32_products("medium"):
        Transformer(11, width=30)
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(("heads", "width"), [(3, 33), (4, 30), (0, 32), (2, 0)])
def test_shapes_that_do_not_divide_are_refused(heads, width):
    with pytest.raises(ValueError, match="expected an even number of heads that divides the width"):
        Transformer(11, width=width, heads=heads)


def test_an_odd_width_per_head_cannot_turn_and_numbers_are_tokens():
    Transformer(11, width=6, heads=2)
    with pytest.raises(ValueError, match="expected an even width per head to turn, got 6 for 2 heads"):
        Transformer(11, width=6, heads=2, positions="rope")
    with pytest.raises(ValueError, match="expected numbers among the 11 tokens, got 12"):
        replace(MODEL, numbers=12)


def test_sorted_positions_turn_a_quarter_of_the_heads_and_a_cut_row_keeps_its_own():
    model = replace(MODEL, positions="sorted")
    ids = tokens(seeds=2, batch=3)
    places = model.places(ids, 5)
    assert places.shape == ids.shape
    assert (places.diff(dim=-1) >= 1).all()
    assert (places == places.round()).all()
    assert 0 <= places.min() < places.max() < SORTED_BELOW
    assert torch.equal(places[0], places[1])  # seeds share them
    assert not torch.equal(places, model.places(ids, 6))
    assert model.slopes.tolist() == MODEL.slopes.tolist()
    cos, sin = model._turn(places)
    assert [bool((head != 0).any()) for head in sin[0, 0]] == [False, True, False, False]
    assert (cos[:, :, 0] == 1).all()
    at = torch.full((2, 3, 1), 11)
    shared, apart = (run(model, [0, 1], ids, at=at, places=p) for p in (places, places.clone()))
    torch.testing.assert_close(shared, apart)
    assert not torch.allclose(shared, run(model, [0, 1], ids, at=at, places=places * 3), atol=1e-3)
    with pytest.raises(ValueError, match=f"expected at most {LONGEST_ROW} tokens"):
        model.places(tokens(length=LONGEST_ROW + 1), 5)


def test_numbers_begin_in_order_and_are_written_as_they_are_read():
    plain, ordered = Transformer(60, 1, 64, 4), Transformer(60, 1, 64, 4, numbers=50)
    named = ordered.named(ordered.init([0, 1]))
    embedding = named["embedding"][0]
    near, far = (float(functional.cosine_similarity(embedding[10], embedding[i], dim=0)) for i in (11, 40))
    assert near > 0.7 > abs(far) + 0.2
    torch.testing.assert_close(named["unembedding"][0], embedding.T / 8)
    others = plain.named(plain.init([0]))
    torch.testing.assert_close(embedding[50:], others["embedding"][0, 50:])
    torch.testing.assert_close(named["layers.0.mlp.up"][0], others["layers.0.mlp.up"][0])  # the same draws
    assert not torch.allclose(embedding, named["embedding"][1])


def test_a_weighted_loss_is_the_sum_that_its_weights_say():
    logits = torch.randn(2, 3, 4, 11, generator=torch.Generator().manual_seed(0))
    answers = torch.randint(11, (2, 3, 4), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(loss_of(logits, answers, torch.full((2, 3, 4), 1 / 12)), loss_of(logits, answers))
    first = torch.zeros(2, 3, 4)
    first[:, 0, 0] = 1
    expected = functional.cross_entropy(logits[:, 0, 0], answers[:, 0, 0], reduction="none")
    torch.testing.assert_close(loss_of(logits, answers, first), expected)
