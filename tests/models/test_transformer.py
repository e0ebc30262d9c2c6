import pytest
import torch
from torch.nn import functional

from sharpmax import PAPER, Constant
from sharpmax.models.transformer import Transformer, float32_products, loss_of

MODEL = Transformer(11, layers=2, width=32, heads=4)


def plain(layer):
    return Constant(1.0)


def run(params, tokens, policy=plain, **options):
    with torch.no_grad():
        return MODEL(params, tokens, policy, **options)


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


def test_it_computes_what_its_docstring_says():
    params, ids = MODEL.init([3]), tokens()
    for sequence, found in zip(ids[0], run(params, ids)[0], strict=True):
        torch.testing.assert_close(found, as_written(params, sequence), rtol=1e-4, atol=1e-4)


def test_it_is_causal():
    params, ids = MODEL.init([0]), tokens()
    changed = ids.clone()
    changed[..., -1] = (changed[..., -1] + 1) % 11
    before, after = run(params, ids), run(params, changed)
    torch.testing.assert_close(before[:, :, :-1], after[:, :, :-1])
    assert not torch.allclose(before[:, :, -1], after[:, :, -1])


def test_seeds_side_by_side_are_what_each_is_alone():
    ids = tokens(seeds=3)
    together = run(MODEL.init([4, 7, 9]), ids)
    for index, seed in enumerate((4, 7, 9)):
        torch.testing.assert_close(together[index], run(MODEL.init([seed]), ids[index : index + 1])[0])
    assert not torch.allclose(together[0], together[1])


def test_places_asked_for_are_those_of_the_whole():
    params, ids, at = MODEL.init([0]), tokens(), torch.tensor([3, 7])
    torch.testing.assert_close(run(params, ids, at=at), run(params, ids)[:, :, at])


def test_a_policy_acts_in_its_layer_and_is_observed():
    params, ids, seen = MODEL.init([0]), tokens(), {}
    sharp = run(params, ids, lambda layer: Constant(3.0) if layer else Constant(1.0))
    assert not torch.allclose(sharp, run(params, ids))
    run(params, ids, lambda layer: PAPER, observer=lambda layer, stats: seen.update({layer: stats.entropy.shape}))
    assert seen == {0: (2, 4, 12), 1: (2, 4, 12)}


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


@pytest.mark.parametrize(("heads", "width"), [(3, 33), (4, 30)])
def test_shapes_that_do_not_divide_are_refused(heads, width):
    with pytest.raises(ValueError, match="expected an even number of heads that divides the width"):
        Transformer(11, width=width, heads=heads)
