"""QK-clip: heads above the threshold come down to it, heads below it stay bit-equal."""

import warnings

import pytest
import torch
from torch import nn

from sharpmax.runs.watched import read_record
from sharpmax.torch import AttentionWarning, QKClip, watch
from tests.torch.watching.small import batch, model, train

THRESHOLD = 3.0


def grown(**options):
    """A layer whose heads 1 and 2 have large logits."""
    net = model(layers=1, **options)
    with torch.no_grad():
        net[0].q_proj.weight[8:24] *= 30
    return net


def maxima(net, x):
    with watch(net) as watched:
        net(x)
        return watched.read().maximum


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"bias": True}, {"key_heads": 2}], ids=["plain", "bias", "grouped"])
def test_after_the_step_no_head_exceeds_the_threshold(options, dtype):
    net, x = grown(**options).to(dtype), batch().to(dtype)
    before = maxima(net, x)
    weights = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    assert (before > THRESHOLD).tolist() == [False, True, True, False]
    with QKClip(net, THRESHOLD) as clip:
        net(x)
        clip.step()
    after = maxima(net, x)
    # The weights are rounded once more, and the products of 8 features sum their roundings.
    assert (after[1:3] <= THRESHOLD * (1 + 8 * torch.finfo(dtype).eps)).all()
    assert (after[1:3] >= THRESHOLD * (1 - 8 * torch.finfo(dtype).eps)).all()
    assert (after[[0, 3]] == before[[0, 3]]).all()
    grouped = options.get("key_heads") == 2
    for name, parameter in net.named_parameters():
        rows = torch.ones(len(parameter), dtype=bool)
        if "q_proj" in name or ("k_proj" in name and not grouped):
            rows[8:24] = False
        assert torch.equal(parameter[rows], weights[name][rows]), name


def test_a_run_that_is_clipped_records_where(tmp_path):
    net = grown()
    clip = QKClip(watch(net, record=tmp_path), THRESHOLD)
    train(net, 3, lambda loss: clip.step(loss=loss), rate=0.0)
    clip.close()
    first, *later = read_record(tmp_path).steps
    assert [factor < 1 for factor in first["scaled"][0]] == [False, True, True, False]
    assert first["scaled"][0][1] == pytest.approx(THRESHOLD / first["maximum"][0][1], rel=1e-4)
    for line in later:
        assert max(line["maximum"][0]) <= THRESHOLD * 1.5  # other batches


def test_pytorchs_own_module_is_clipped_by_its_rows():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 2, batch_first=True)
    x = torch.randn(3, 6, 16) * 20
    before = layer.in_proj_weight.detach().clone()
    with watch(layer) as watched:
        layer(x, x, x)
        top = watched.read().maximum
    threshold = float(top.min() + top.max()) / 2
    with QKClip(layer, threshold) as clip:
        layer(x, x, x)
        clip.step()
    with watch(layer) as watched:
        layer(x, x, x)
        after = watched.read().maximum
    low, high = int(top.argmin()), int(top.argmax())
    assert after[low] == top[low]
    assert after[high] == pytest.approx(threshold, rel=1e-5)
    changed = (layer.in_proj_weight != before).any(1).view(3, 2, 8).all(-1)
    assert changed[:2, high].all()
    assert not changed[:, low].any()
    assert not changed[2].any()


class Normed(nn.Module):
    """Queries and keys that are normalised, per head or over all heads together."""

    def __init__(self, together):
        super().__init__()
        inner = model(layers=1)[0]
        self.q_proj, self.k_proj, self.head_dim = inner.q_proj, inner.k_proj, 8
        self.q_norm, self.k_norm = (nn.RMSNorm(32 if together else 8) for _ in range(2))
        self.attend = inner.attend
        self.together = together

    def forward(self, x):
        q, k = self.q_proj(x), self.k_proj(x)
        if self.together:
            q, k = (norm(y).unflatten(-1, (4, 8)) for norm, y in ((self.q_norm, q), (self.k_norm, k)))
        else:
            q, k = (norm(y.unflatten(-1, (4, 8))) for norm, y in ((self.q_norm, q), (self.k_norm, k)))
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        return self.attend(q, k, k, is_causal=True)


def test_a_norm_of_all_heads_is_clipped_per_head():
    net, x = Normed(together=True), batch()
    with torch.no_grad():
        net.q_norm.weight[:8] *= 20
    before = maxima(net, x)
    threshold = float((before[0] + before[1:].max()) / 2)
    with QKClip(net, threshold) as clip:
        net(x)
        clip.step()
    after = maxima(net, x)
    assert after[0] == pytest.approx(threshold, rel=1e-5)
    assert (after[1:] == before[1:]).all()


def test_a_norm_that_heads_share_is_clipped_for_the_layer():
    net, x = Normed(together=False), batch()
    before = maxima(net, x)
    threshold = float(before.max()) * 0.8
    with QKClip(net, threshold) as clip:
        net(x)
        clip.step()
    assert maxima(net, x) == pytest.approx(before * 0.8, rel=1e-5)


def test_only_measured_steps_are_clipped():
    net = grown()
    weight = net[0].q_proj.weight.detach().clone()
    with QKClip(watch(net, every=2, step=1), THRESHOLD) as clip:
        net(batch())
        clip.step()
        assert torch.equal(net[0].q_proj.weight, weight)
        net(batch())
        clip.step()
        assert not torch.equal(net[0].q_proj.weight, weight)


def test_what_cannot_be_clipped_is_refused_by_name():
    class Strange(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = model(layers=1)[0].attend

        def forward(self, x):
            x = x.unflatten(-1, (4, 8)).transpose(1, 2)
            return self.attend(x, x, x)

    clip = QKClip(Strange(), 1e-3)
    clip.watch.model(batch())
    with pytest.raises(NotImplementedError, match="attend cannot be clipped per head: how a Strange makes"):
        clip.step()
    clip.close()


def test_settings_that_mean_nothing_are_refused():
    for threshold in (0, "1", True, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive threshold"):
            QKClip(model(), threshold)
    with watch(model()) as watched, pytest.raises(TypeError, match="where the watch is made"):
        QKClip(watched, 1.0, every=3)


class Some(nn.Module):
    """Layers of which some do not run, as where a step reads no image."""

    def __init__(self, net, left_out):
        super().__init__()
        self.net, self.left_out = net, left_out

    def forward(self, x):
        for at, layer in enumerate(self.net):
            x = x if at in self.left_out else layer(x)
        return x


@pytest.mark.parametrize("left_out", [{0}, {1}, {2}])
def test_a_layer_that_does_not_run_is_left_alone_and_the_others_get_their_own_factors(left_out):
    net, x = Some(model(layers=3), left_out), batch()
    before = [layer.q_proj.weight.detach().clone() for layer in net.net]
    with QKClip(net, 0.01) as clip:
        net(x)
        maximum = clip.watch.read().maximum
        names = [clip.watch.name_of(place) for place in (0, 4)]
        clip.step()
        assert torch.tensor(clip.watch.latest.heads).tolist() == [0 if at in left_out else 4 for at in range(3)]
    ran = [at for at in range(3) if at not in left_out]
    assert names == [f"layer {ran[0]}, head 0", f"layer {ran[1]}, head 0"]
    root = torch.as_tensor((0.01 / maximum) ** 0.5).float().clamp(max=1).view(2, 4)
    for at, layer in enumerate(net.net):
        expected = before[at] if at in left_out else before[at] * root[ran.index(at)].repeat_interleave(8)[:, None]
        torch.testing.assert_close(layer.q_proj.weight.detach(), expected)


def test_queries_and_keys_of_one_projection_are_scaled_once():
    net, x = grown(), batch()
    net[0].k_proj = net[0].q_proj
    with QKClip(net, THRESHOLD) as clip:
        net(x)
        clip.step()
    torch.testing.assert_close(torch.as_tensor(maxima(net, x)[1:3]).float(), torch.full((2,), THRESHOLD))


def test_weights_that_two_layers_share_are_refused():
    net, x = model(layers=2), batch()
    net[1].q_proj.weight = net[0].q_proj.weight
    with QKClip(net, 0.01) as clip:
        net(x)
        with pytest.raises(NotImplementedError, match=r"1.attend cannot be clipped per head: it shares its weights"):
            clip.step()


def test_a_projection_that_was_replaced_is_found():
    net, x = grown(), batch()
    with QKClip(net, THRESHOLD) as clip:
        net(x)
        clip.step()
        net[0].q_proj = grown()[0].q_proj
        net(x)
        clip.step()
    assert (maxima(net, x) <= THRESHOLD * (1 + 1e-6)).all()


def test_a_clip_in_vain_is_said_once():
    net, x = grown(), batch()
    # Queries of length 100, whatever the projection's weights are.
    net[0].q_proj.register_forward_hook(lambda module, given, made: 100 * torch.nn.functional.normalize(made, dim=-1))
    with QKClip(net, 0.1) as clip, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(6):
            with torch.no_grad():
                net[0].k_proj.weight.copy_(grown()[0].k_proj.weight)  # as an optimiser may put it back
            net(x)
            clip.step()
    (one,) = [warning for warning in said if warning.category is AttentionWarning]
    assert "not linear in the weights" in str(one.message)


def test_a_loss_of_several_numbers_is_refused_before_the_step_is_counted():
    net = model(layers=1)
    with QKClip(net) as clip:
        net(batch())
        with pytest.raises(ValueError, match="expected the loss of a step, one number"):
            clip.step(loss=torch.ones(2))
        assert clip.watch.current_step == 0


def test_a_step_that_the_watch_has_ended_before_the_clip_is_named():
    net = grown()
    clip = QKClip(watch(net), THRESHOLD)
    net(batch())
    clip.watch.step()
    with pytest.warns(AttentionWarning, match="ended twice: with a QKClip call its step alone"):
        clip.step()
    clip.close()
