"""QK-clip in every model type: halving one head's logits halves them, and leaves the other heads of its layer alone.

A class is clipped by rows of its projections or by its norm's weight, which names do not tell. So each is tried.
"""

import warnings

import pytest
import torch
import transformers

from sharpmax.hf.models.quiet import quiet
from sharpmax.torch import watch
from sharpmax.torch.watching.head_weights import head_weights
from sharpmax.torch.watching.measure import Gauge
from tests.hf.sharpen.survey.by_hand import NOT_TRIED
from tests.hf.sharpen.survey.judge import REFUSED, build, classes_of, first_that_runs, refusal
from tests.hf.sharpen.survey.small import small_config
from tests.hf.sharpen.survey.table import candidates

FEEDS_BACK = {"hrm_text", "efficientloftr", "videomt"}
"""Their layers read what they made before: other weights are other inputs."""


def small_model(model_type, **changes):
    """Return a small model of the type and inputs for it; None where none is built here, or it is refused."""
    names = candidates()[model_type]
    kinds = [getattr(transformers, name, None) for name in names] if names else classes_of(model_type)
    for kind in [kind for kind in kinds if kind is not None][:2]:
        for shallow in (False, True):
            try:
                config = small_config(model_type, shallow=shallow)
                for name, value in changes.items():
                    setattr(config, name, value)
                model = build(kind, config)
                if refusal(model)[0] == REFUSED:
                    return None
                return model, first_that_runs(model)[0]
            except Exception:
                continue
    return None


def maxima(model, given):
    """Return the maxima of every layer's heads, the layers, and those whose logits are more than products."""
    bent, call = set(), Gauge.__call__

    def noted(gauge, layer, query, key, **options):
        bias = options.get("bias")
        if (bias is not None and bias.any()) or options.get("softcap") is not None:
            bent.add(layer)
        return call(gauge, layer, query, key, **options)

    with pytest.MonkeyPatch.context() as patch, watch(model, in_evaluation=True) as watched, torch.no_grad():
        patch.setattr(Gauge, "__call__", noted)
        torch.manual_seed(0)
        model(**given)
        return {index: of.maximum.clone() for index, of in watched.gauge.layers.items()}, watched.layers, bent


def faults(model, given):
    """Return how many layers were clipped, and the names of those in which more or less came down."""
    before, layers, bent = maxima(model, given)
    state = [p.detach().clone() for p in model.parameters()]
    wrong, tried = [], 0
    for layer in layers:
        index = layer.indices[0]
        if index not in before:
            continue
        factor = torch.ones(len(before[index]))
        factor[min(1, len(factor) - 1)] = 0.5
        try:
            applied = head_weights(layer.module, len(factor), layer.name).scale(factor)
        except NotImplementedError:
            continue
        tried += 1
        after = maxima(model, given)[0][index]
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), state, strict=True):
                parameter.copy_(value)
        spared = applied == 1
        halved = index in bent or torch.allclose(after, before[index] * applied, rtol=1e-3, atol=1e-6)
        if not (halved and torch.equal(after[spared], before[index][spared])):
            wrong.append(f"{layer.name} ({type(layer.module).__name__}): {before[index]} -> {after}")
    return tried, wrong


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("gpt_bigcode", {"multi_query": True}),
        ("gpt_bigcode", {"multi_query": False}),
        ("gpt2", {}),
        ("gemma4_text", {}),
        ("qwen3_5_text", {}),
        ("phi4_multimodal", {}),
    ],
)
def test_a_clip_reaches_one_head_and_no_other(model_type, changes):
    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        tried, wrong = faults(*small_model(model_type, **changes))
    assert tried
    assert not wrong


def test_the_check_can_fail(monkeypatch):
    from sharpmax.torch.watching import head_weights as module

    layout = ("c_attn", module._head_by_head)
    monkeypatch.setitem(module.FUSED, "GPT2Attention", layout)
    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        assert faults(*small_model("gpt2"))[1]


@pytest.mark.slow
def test_a_clip_is_right_or_refused_in_every_model_type():
    found = {}
    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        for model_type in sorted(candidates().keys() - NOT_TRIED.keys() - FEEDS_BACK):
            made = small_model(model_type)
            if made is not None:
                tried, wrong = faults(*made)
                found[model_type] = wrong if tried else None
    assert not {model_type: wrong for model_type, wrong in found.items() if wrong}
    assert sum(wrong is not None for wrong in found.values()) > 200
