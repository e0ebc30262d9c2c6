"""Watching: which steps, what is read, what is recorded; training is the same with and without."""

import copy
import json

import numpy as np
import pytest
import torch
from torch import nn

from sharpmax.runs.watched import read_record
from sharpmax.torch import Guard, LogitGrowthWarning, QKClip, WatchedAttention, row_stats, watch
from tests.torch.watching.small import Block, batch, model, train


def test_a_reading_is_of_the_rows_since_the_last_step():
    net = model(layers=1)
    x = batch()
    block = net[0]
    q, k = (p(x).unflatten(-1, (-1, 8)).transpose(1, 2) for p in (block.q_proj, block.k_proj))
    stats = row_stats(q, k, is_causal=True, implementation="eager")  # so few logits are computed all at once
    with watch(net) as watched:
        net(x)
        reading = watched.read()
        np.testing.assert_array_equal(reading.maximum, stats.maximum.amax((0, 2)).detach().double())
        np.testing.assert_allclose(reading.entropy, stats.entropy.mean((0, 2)).detach(), rtol=1e-6)
        np.testing.assert_allclose(reading.logsumexp, stats.logsumexp.mean((0, 2)).detach(), rtol=1e-6)
        net(x)  # gradient accumulation: two passes are one step
        assert watched.read().rows.tolist() == [2 * 4 * 12] * 4
        watched.step()
        net(x)
        assert watched.read().rows.tolist() == [4 * 12] * 4


@pytest.mark.parametrize("every", [1, 3])
def test_training_is_the_same_with_and_without(every):
    plain = train(model(), 7)
    net = model()
    with watch(net, every=every) as watched:
        assert train(net, 7, lambda loss: watched.step(loss=loss)) == plain


def test_only_every_nth_step_is_measured(tmp_path, monkeypatch):
    measured = []
    net = model(layers=1)
    with watch(net, every=3, record=tmp_path) as watched:
        monkeypatch.setattr(watched.gauge, "measure", lambda *given: measured.append(watched.current_step))
        train(net, 8, lambda _: watched.step())
    assert measured == [0, 3, 6]


def test_evaluation_is_not_counted_unless_asked():
    net = model()
    with watch(net) as watched:
        net.eval()
        net(batch())
        with pytest.raises(ValueError, match="in training mode"):
            watched.read()
    with watch(net, in_evaluation=True) as watched:
        net(batch())
        assert watched.read().rows.min() == 48


def test_rows_of_inference_mode_and_of_training_are_counted_together():
    net = model(layers=1)
    watched = watch(net)
    with torch.inference_mode():
        net(batch())
    net(batch())
    assert watched.read().rows.tolist() == [96] * 4
    watched.close()


def test_a_watch_that_is_refused_leaves_nothing_behind():
    net = model()
    with watch(net[1]), pytest.raises(RuntimeError, match="attend is watched already"):
        watch(net)
    watch(net).close()


def test_a_closed_watch_leaves_nothing_behind():
    net = model()
    with watch(net):
        pass
    assert all(part.gauge is None for part in net.modules() if isinstance(part, WatchedAttention))
    with watch(net) as first:
        with pytest.raises(RuntimeError, match="watched already"):
            watch(net)
        first.close()
        first.close()


def test_a_killed_run_keeps_one_continuous_record(tmp_path):
    net = model()
    with watch(net, record=tmp_path / "whole.jsonl") as watched:
        losses = train(net, 9, lambda loss: watched.step(loss=loss))
    again = model()
    with watch(again, record=tmp_path / "killed.jsonl") as watched:
        train(again, 4, lambda loss: watched.step(loss=loss))
        saved = copy.deepcopy(again.state_dict())
        train(again, 6, lambda loss: watched.step(loss=loss), first=4)  # lost with the process
    with (tmp_path / "killed.jsonl").open("a") as file:
        file.write('{"step": 6, "loss"')  # and half a line
    continued = model(seed=1)
    continued.load_state_dict(saved)
    with watch(continued, record=tmp_path / "killed.jsonl", step=4) as watched:
        train(continued, 9, lambda loss: watched.step(loss=loss), first=4)
    whole, killed = (read_record(tmp_path / f"{name}.jsonl") for name in ("whole", "killed"))
    assert killed == whole
    assert [line["step"] for line in whole.steps] == list(range(9))
    assert [line["loss"] for line in whole.steps] == [float(f"{loss:.6g}") for loss in losses]
    assert whole.about["layers"] == ["0.attend", "1.attend"]


def test_without_a_step_a_record_continues_after_its_last(tmp_path):
    net = model()
    for _ in range(2):
        with watch(net, record=tmp_path) as watched:
            train(net, 2, lambda _: watched.step())
    assert [line["step"] for line in read_record(tmp_path).steps] == [0, 1, 2, 3]


def test_the_record_of_another_model_is_refused(tmp_path):
    with watch(model(), record=tmp_path) as watched:
        train(watched.model, 1, lambda _: watched.step())
    watched = watch(model(layers=3), record=tmp_path)
    with pytest.raises(ValueError, match="another model"):
        train(watched.model, 1, lambda _: watched.step())


def test_a_copy_of_a_watched_model_is_not_watched():
    net = model()
    with watch(net) as watched:
        copied = copy.deepcopy(net)
        copied(batch())
        with pytest.raises(ValueError, match="no row was gathered"):
            watched.read()
        assert all(part.gauge is None for part in copied.modules() if isinstance(part, WatchedAttention))
        assert net.state_dict().keys() == model().state_dict().keys()


def test_another_file_in_the_record_s_place_is_refused_at_once(tmp_path):
    (tmp_path / "watch.jsonl").write_text("something else\n")
    with pytest.raises(ValueError, match="not the record of a watched run"):
        watch(model(), record=tmp_path)


def test_a_module_of_pytorch_is_watched():
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(3, 5, 8)
    with watch(layer) as watched:
        layer(x, x, x)
        assert watched.read().rows.tolist() == [15, 15]


def test_a_listener_hears_of_each_step():
    heard = []
    net = model()
    with watch(net, every=2) as watched:
        watched.listeners.append(lambda step, reading: heard.append((step, len(reading.maximum))))
        train(net, 4, lambda _: watched.step())
    assert heard == [(0, 8), (2, 8)]
    assert watched.latest_step == 2


@pytest.mark.filterwarnings("ignore:.*:UserWarning:torch")  # of the compiler, on itself
def test_a_compiled_model_is_watched_and_trains_the_same():
    torch.compiler.reset()
    plain = train(model(), 5)
    net = model()
    with watch(net, every=2, in_evaluation=True) as watched:
        compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
        rows = []
        watched.listeners.append(lambda step, reading: rows.append((step, reading.rows.tolist())))
        assert train(compiled, 5, lambda loss: watched.step(loss=loss)) == pytest.approx(plain)
    assert rows == [(step, [48.0] * 8) for step in (0, 2, 4)]


def test_a_guard_warns_with_the_step_and_the_head(tmp_path):
    net = model(layers=1)
    with torch.no_grad():
        net[0].q_proj.weight[8:16] *= 1000
    with watch(net, record=tmp_path, guard=Guard(maximum=50)) as watched:
        net(batch())
        with pytest.warns(LogitGrowthWarning, match="step 0: layer 0, head 1: its largest logit is"):
            watched.step()
    (line,) = read_record(tmp_path).steps
    assert [(w["kind"], w["layer"], w["head"]) for w in line["warned"]] == [("growth", 0, 1)]


def test_a_record_is_json_lines(tmp_path):
    net = Block()
    with watch(net, record=tmp_path / "mine.jsonl") as watched:
        net(torch.full((1, 3, 32), torch.nan))
        watched.step(loss=float("nan"))
    lines = [json.loads(line) for line in (tmp_path / "mine.jsonl").read_text().splitlines()]
    assert lines[1]["loss"] is None
    assert lines[1]["maximum"] == [[None] * 4]
    assert lines[1]["poisoned"] == [[3.0] * 4]


def test_a_slot_takes_the_same_masks_whether_it_is_watched_or_not():
    x = torch.randn(1, 2, 6, 8)
    slot = WatchedAttention()
    with pytest.raises(TypeError, match="mask must be boolean"):
        slot(x, x, x, mask=torch.zeros(6, 6))


class Both(nn.Module):
    """A slot, and other attention beside it."""

    def __init__(self):
        super().__init__()
        self.block, self.other = Block(), nn.MultiheadAttention(32, 4, batch_first=True)


def test_attention_beside_the_slots_is_not_left_out_in_silence():
    net = Both()
    with pytest.raises(NotImplementedError, match="other of this Both attends beside WatchedAttention"):
        watch(net)
    assert net.block.attend.gauge is None
    watch(net.block).close()  # a part of it may be watched


def test_a_closed_watch_is_not_used_again_in_silence():
    net = model(layers=1)
    with watch(net) as watched:
        net(batch())
        watched.step()
    clip = QKClip(model(layers=1))
    clip.close()
    for use in (watched.step, watched.take, watched.__enter__, clip.step):
        with pytest.raises(RuntimeError, match="this watch was closed"):
            use()
    watched.close()
    watched.flush()


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"guard": 5}, TypeError, r"a Guard\(…\), got 5"),
        ({"guard": Guard}, TypeError, r"a Guard\(…\)"),
        ({"record": 5}, TypeError, "path of a folder"),
        ({"step": -1}, ValueError, "step 0 or later"),
        ({"step": 2**60}, ValueError, "before 2"),  # no record that it writes could be read
        *(({"every": every}, ValueError, "every 1 step or more") for every in (0, -1, 1.5, True)),
        ({"in_evaluation": "no"}, TypeError, "expected in_evaluation to be"),
        ({"group": 3}, TypeError, "expected group to be"),
    ],
)
def test_settings_that_mean_nothing_are_refused(options, error, said):
    with pytest.raises(error, match=said):
        watch(model(), **options)


def test_what_is_no_module_is_refused():
    with pytest.raises(TypeError, match="a torch module, got NoneType"):
        watch(None)
