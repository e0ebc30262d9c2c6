"""Gradient checkpointing: layers that run again in the backward pass give the same gradients, and are told of once."""

from functools import partial

import pytest
import torch
from torch.utils.checkpoint import CheckpointError, checkpoint

import sharpmax
from sharpmax.hf import sharpen
from tests.hf.families import build, tokens

POLICIES = {
    "paper": sharpmax.PAPER,
    "target": sharpmax.EntropyTarget(0.5),
    "log_linear": sharpmax.LogLinear(0.1, 0.1, 0.1),
    "constant": sharpmax.Constant(1.5),
}
CASES = [(name, how, observed) for name in POLICIES for how in ("eager", "chunked") for observed in (False, True)]
CASES += [(name, "stock", False) for name in POLICIES if name != "target"]  # it gives no maximum and no variance


def trained(checkpointing, *, reentrant=False, family="llama"):
    model = build(family).double().train()  # a reentrant first pass, without a graph, may round otherwise
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    return model


def gradients(model, policy, steps=1, **options):
    """Gradients summed over several passes: the first one may watch, the later ones do not."""
    ids = tokens()
    with sharpen(model, policy, **options):
        for _ in range(steps):
            model(ids, labels=ids).loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(("name", "implementation", "observed"), CASES)
def test_checkpointed_gradients_are_the_plain_ones(name, implementation, observed, reentrant):
    options = {"implementation": implementation, "observer": (lambda *_: None) if observed else None}
    plain = gradients(trained(False), POLICIES[name], steps=2, **options)
    found = gradients(trained(True, reentrant=reentrant), POLICIES[name], steps=2, **options)
    torch.testing.assert_close(found, plain)


def test_sinks_learn_under_checkpointing():
    plain, found = (
        gradients(trained(on, family="gpt_oss"), sharpmax.PAPER, implementation="chunked") for on in (False, True)
    )
    torch.testing.assert_close(found, plain)


@pytest.mark.parametrize("reentrant", [False, True])
def test_an_observer_is_told_of_every_layer_once(reentrant):
    seen, probed = [], []
    looks = {"observer": lambda layer, _: seen.append(layer), "probe": lambda layer, *_: probed.append(layer)}
    gradients(trained(True, reentrant=reentrant), sharpmax.PAPER, **looks)
    assert seen == probed == [0, 1]


def test_a_shared_module_runs_again_with_the_whole_model_only():
    model, ids = trained(False, family="albert"), tokens()
    embedded = model.embeddings(ids).detach().requires_grad_()

    def whole(x):
        return model(inputs_embeds=x).last_hidden_state

    found = []
    policy = sharpmax.PerLayer((sharpmax.Constant(1.0), sharpmax.Constant(2.0)))
    with sharpen(model, policy):
        for result in (whole(embedded), checkpoint(whole, embedded, use_reentrant=False)):
            found.append(torch.autograd.grad(result.square().sum(), embedded)[0])
        block = model.encoder.albert_layer_groups[0]
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        loss = whole(embedded).square().sum()
        with pytest.raises(NotImplementedError, match="switch gradient checkpointing off"):
            loss.backward()
    torch.testing.assert_close(*found)


def test_reentrant_checkpointing_warns_of_a_backward_to_come():
    model, ids = trained(True, reentrant=True), tokens()
    sharpened = sharpen(model)
    model(ids, labels=ids).loss.backward()
    model(ids, labels=ids)
    with pytest.warns(RuntimeWarning, match=r"2 attention calls .* use_reentrant=False"):
        sharpened.restore()


def test_without_reentrance_a_late_backward_fails_by_itself():
    model, ids = trained(True), tokens()
    with sharpen(model, sharpmax.PAPER):
        loss = model(ids, labels=ids).loss
    with pytest.raises(CheckpointError):
        loss.backward()
