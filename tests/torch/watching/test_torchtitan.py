"""The overrides for torchtitan, at module level: as it documents them, and in torchtitan itself where it is installed.

torchtitan needs packages that conflict with others of the tests, so it is not among them. What its override hook and
its attention promise (torchtitan 0.3) is written down here as a stand-in.
"""

import importlib
import sys
from dataclasses import dataclass, fields
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from sharpmax.torch import QKClip, watch
from sharpmax.torch.watching.measure import Gauge
from tests import stand_ins

MODULE = "sharpmax.torch.watching.torchtitan"


class Module(nn.Module):
    """A module that its config builds."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        pass

    def __init_subclass__(cls):
        super().__init_subclass__()
        cls.Config.build = lambda self: cls(self)


class ScaledDotProductAttention(Module):
    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        pass

    def __init__(self, config):
        super().__init__()

    def forward(self, q_BLNH, k_BLNH, v_BLNH, *, attention_masks=None, scale=None, enable_gqa=False, is_causal=True):
        assert attention_masks is None
        q, k, v = (x.transpose(1, 2) for x in (q_BLNH, k_BLNH, v_BLNH))
        out = functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=is_causal, enable_gqa=enable_gqa)
        return out.transpose(1, 2)


class VarlenAttention(Module):
    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        window_size: tuple[int, int] = (-1, 0)

    def __init__(self, config):
        super().__init__()
        self.window_size = config.window_size

    def forward(self, q_BLNH, k_BLNH, v_BLNH, *, attention_masks, scale=None, **kwargs):
        return q_BLNH


def override(*, target, fqns=None, description="", exact=False):
    assert isinstance(target, type)
    return lambda function: function


def derive(source, target_cls, **deltas):
    return target_cls(**{f.name: getattr(source, f.name) for f in fields(source)} | deltas)


@pytest.fixture(params=["as documented", *(["itself"] if find_spec("torchtitan") else [])])
def overrides(request, monkeypatch):
    if request.param == "as documented":
        folders = ("torchtitan", "torchtitan.config", "torchtitan.models", "torchtitan.models.common")
        layers = {kind.__name__: kind for kind in (ScaledDotProductAttention, VarlenAttention)}
        hook = {"override": override, "derive": derive}
        files = {"torchtitan.config.override": hook, "torchtitan.models.common.attention": layers}
        stand_ins.install(monkeypatch, {name: {} for name in folders} | files)
    else:
        importlib.import_module("torchtitan.config.override").clear_overrides()
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield importlib.import_module(MODULE)
    sys.modules.pop(MODULE, None)


class Layer(nn.Module):
    """A layer as torchtitan's GQAttention is built."""

    def __init__(self, inner):
        super().__init__()
        self.qkv_linear = nn.Module()
        self.qkv_linear.wq, self.qkv_linear.wk = nn.Linear(16, 16, bias=False), nn.Linear(16, 8, bias=False)
        self.head_dim, self.inner_attention = 4, inner

    def forward(self, x):
        q, k = (w(x).unflatten(-1, (-1, 4)) for w in (self.qkv_linear.wq, self.qkv_linear.wk))
        return self.inner_attention(q, k, k, attention_masks=None, scale=None, enable_gqa=True).flatten(2)


def test_the_override_attends_as_before_and_can_be_watched(overrides):
    config = overrides.ScaledDotProductAttention.Config()
    plain, watched = config.build(), overrides.watched_attention(config).build()
    layer = Layer(plain)
    x = torch.randn(2, 6, 16)
    expected = layer(x)
    layer.inner_attention = watched
    assert torch.equal(layer(x), expected)
    with watch(layer) as one:
        assert torch.equal(layer(x), expected)
        before = one.read()
    assert before.rows.tolist() == [12] * 4
    threshold = float(before.maximum.max()) / 2
    with QKClip(layer, threshold) as clip:
        layer(x)
        clip.step()
        layer(x)
        assert clip.watch.read().maximum.max() == pytest.approx(threshold, rel=1e-5)


def test_packed_documents_are_read_by_their_ends(overrides):
    config = overrides.VarlenAttention.Config(window_size=(-1, 0))
    inner = overrides.watched_varlen(config).build()
    inner.gauge, alone = Gauge(), Gauge()
    q, k = torch.randn(1, 10, 4, 8), torch.randn(1, 10, 2, 8)
    ends = torch.tensor([0, 4, 10], dtype=torch.int32)
    inner.gauge.measuring = True
    try:
        inner(q, k, k, attention_masks=SimpleNamespace(cu_seq_q=ends))
    except AssertionError:  # torchtitan's own kernel asks for its metadata, and for a GPU
        assert overrides.VarlenAttention is not VarlenAttention
    for low, high in ((0, 4), (4, 10)):
        alone(0, *(x[:, low:high].transpose(1, 2) for x in (q, k)), is_causal=True)
    torch.testing.assert_close(inner.gauge.layers[0].maximum, alone.layers[0].maximum, rtol=1e-6, atol=0)
    torch.testing.assert_close(inner.gauge.layers[0].sums, alone.layers[0].sums)


def test_a_window_to_the_right_is_refused(overrides):
    inner = overrides.watched_varlen(overrides.VarlenAttention.Config(window_size=(-1, -1))).build()
    inner.gauge = Gauge()
    x = torch.randn(1, 4, 2, 8)
    with pytest.raises(NotImplementedError, match="causal"):
        inner(x, x, x, attention_masks=SimpleNamespace(cu_seq_q=torch.tensor([0, 4])))
