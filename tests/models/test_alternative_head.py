"""The head with other normalisers, folded, is the head as written, for each of them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharpmax.core import normalisers
from sharpmax.core.policies import PAPER, EntropyTarget
from sharpmax.models.alternative_head import AlternativeHead
from sharpmax.models.max_retrieval import Head
from sharpmax.tasks.max_retrieval import training_batch

SMALL = {"width": 16, "key_width": 8}
KINDS = [getattr(normalisers, name)() for name in normalisers.__all__ if name != "Normaliser"]


def drawn(head, seed=0):
    """Return parameters with biases that are not 0, and a batch with padding."""
    params = head.init(jax.random.key(seed))
    shaken = jax.random.normal(jax.random.key(seed + 1), (1000,))
    numbers = itertools.count()
    params = jax.tree.map(lambda p: p if p.ndim > 1 else p + shaken[next(numbers)], params)
    return params, training_batch(jax.random.key(seed + 2), 6, sizes=(5, 16))


def as_written(head, params, batch):
    """h_i = psi(x_i), e_i = (Q h_q)·(K h_i), Σ w_i V h_i, with nothing folded."""
    items = batch.items if head.encoder == "linear" else head.mlp(params["item"], batch.items)
    keys, asked = items @ params["K"], head.asked(params, batch.query)
    if head.scores == "kernel":
        keys, asked = (jax.nn.elu(x) + 1 for x in (keys, asked))
    logits = jnp.einsum("snk,sk->sn", keys, asked)
    weights = head.normaliser(logits, where=batch.visible)
    values = items @ params["V"] + (params["V_bias"] if head.biased else 0)
    return head.mlp(params["decoder"], jnp.einsum("sn,snv->sv", weights, values))


LINEAR = {"normaliser": normalisers.Proportional(), "scores": "kernel"}
"""Linear attention."""


@pytest.mark.parametrize(("encoder", "biased"), [("mlp", True), ("linear", False)])
@pytest.mark.parametrize("options", [*({"normaliser": kind} for kind in KINDS), LINEAR], ids=str)
def test_folded_as_written(options, encoder, biased):
    head = AlternativeHead(encoder=encoder, biased=biased, **options, **SMALL)
    params, batch = drawn(head)
    folded = head(params, batch.items, batch.query, visible=batch.visible)
    np.testing.assert_allclose(folded, as_written(head, params, batch), rtol=2e-4, atol=2e-5)


def test_differential_attention_is_two_softmaxes():
    head = AlternativeHead(scores="difference", **SMALL)
    params, batch = drawn(head)
    plain = AlternativeHead(**SMALL)
    other = {**params, "Q": params["Q_other"], "K": params["K_other"]}
    first, second = (plain.attend(p, batch.items, batch.query, visible=batch.visible)[0] for p in (params, other))
    weights, features = head.attend(params, batch.items, batch.query, visible=batch.visible)
    np.testing.assert_allclose(weights, first - params["share"] * second, atol=1e-6)
    # The bias of an item counts as often as the weights' sum, which is not 1.
    encoded = features @ params["item"]["output"] + params["item"]["output_bias"]
    pooled = jnp.einsum("sn,snf->sf", weights, encoded)
    by_hand = head.mlp(params["decoder"], pooled @ params["V"])
    np.testing.assert_allclose(head.answer(params, weights, features), by_hand, rtol=2e-4, atol=2e-5)


def test_plain_softmax_is_the_head_of_the_paper():
    plain, other = Head(**SMALL), AlternativeHead(**SMALL)
    params, batch = drawn(plain)
    given = params, batch.items, batch.query
    for beta in (1.0, 3.0):
        np.testing.assert_allclose(
            other(*given, visible=batch.visible, beta=beta), plain(*given, visible=batch.visible, beta=beta), rtol=1e-4
        )


@pytest.mark.parametrize("policy", [PAPER, EntropyTarget(0.5)])
def test_a_policy_sharpens_the_row_that_is_weighed(policy):
    plain, sharp = AlternativeHead(**SMALL), AlternativeHead(policy=policy, **SMALL)
    params, batch = drawn(plain)
    soft, hard = (head.attend(params, batch.items, batch.query, visible=batch.visible)[0] for head in (plain, sharp))
    assert (hard.max(-1) > soft.max(-1) + 0.01).any()
    assert (hard[~batch.visible] == 0).all()


def test_a_learned_scale_begins_at_1_for_16_items_and_has_a_gradient():
    head = AlternativeHead(learns_scale=True, **SMALL)
    params, batch = drawn(head)
    params["scale"] = head.init(jax.random.key(0))["scale"]
    full = jnp.ones_like(batch.visible)
    plain = AlternativeHead(**SMALL)(params, batch.items, batch.query, visible=full)
    np.testing.assert_allclose(head(params, batch.items, batch.query, visible=full), plain, rtol=1e-4, atol=1e-5)
    slopes = jax.grad(lambda p: head(p, batch.items, batch.query, visible=batch.visible).sum())(params)["scale"]
    assert all(float(abs(slope)) > 1e-6 for slope in slopes.values())


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_every_parameter_that_matters_has_a_finite_gradient(kind):
    head = AlternativeHead(normaliser=kind, **SMALL)
    params, batch = drawn(head)
    gradient = jax.grad(lambda p: (head(p, batch.items, batch.query, visible=batch.visible) ** 2).sum())(params)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradient))
    assert float(jnp.abs(gradient["K"]).max()) > 0


@pytest.mark.parametrize(
    ("options", "says"),
    [({"scores": "cosine"}, "product, kernel, difference"), ({"learns_scale": True, "policy": PAPER}, "got both")],
)
def test_what_does_not_fit_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        AlternativeHead(**options)
