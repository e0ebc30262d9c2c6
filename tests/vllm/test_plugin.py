"""What the plug-in registers with vLLM, on stand-ins: without a card nothing happens, with one nothing in silence."""

from types import SimpleNamespace

import pytest

import sharpmax
from sharpmax.vllm import plugin
from tests import stand_ins
from tests.vllm import stand_in

CUSTOM, FLASH, CPU = (SimpleNamespace(name=name) for name in ("CUSTOM", "FLASH_ATTN", "CPU_ATTN"))


@pytest.fixture
def engine(monkeypatch):
    """Stand-ins for a platform and its backends; returns what was registered, logged, and the platform."""
    stand_in.install(monkeypatch)
    found = SimpleNamespace(registered={}, logged=[], checked=0)

    class Platform:
        device_name, kind = "stand-in", "cpu"

        @classmethod
        def check_and_update_config(cls, config):
            found.checked += 1

        def is_cpu(self):
            return self.kind == "cpu"

        def is_cuda(self):
            return self.kind == "cuda"

    found.platform = Platform
    modules = {
        "vllm.platforms": {"current_platform": Platform()},
        "vllm.v1": {},
        "vllm.v1.attention": {},
        "vllm.v1.attention.backends": {},
        "vllm.v1.attention.backends.registry": {
            "AttentionBackendEnum": SimpleNamespace(CUSTOM=CUSTOM, CPU_ATTN=CPU),
            "register_backend": lambda backend, path: found.registered.update({backend.name: path}),
        },
        "vllm.logger": {
            "init_logger": lambda name: SimpleNamespace(error=lambda form, error: found.logged.append(str(error)))
        },
    }
    stand_ins.install(monkeypatch, modules)
    return found


def config(tmp_path, *, backend=None, **changes):
    sharpmax.PAPER.save(tmp_path / "card.json")
    made = stand_in.config(tmp_path / "card.json")
    made.attention_config = SimpleNamespace(backend=backend)
    vars(made).update(changes)
    return made


@pytest.mark.parametrize(("kind", "backend"), [("cpu", "CPU_ATTN"), ("cuda", "CUSTOM")])
def test_it_registers_once_however_often_it_is_called(engine, tmp_path, kind, backend):
    engine.platform.kind = kind
    plugin.register()
    plugin.register()
    assert engine.registered.keys() == {backend}
    asked = config(tmp_path)
    engine.platform.check_and_update_config(asked)
    assert engine.checked == 1
    assert asked.attention_config.backend is (CUSTOM if kind == "cuda" else None)


@pytest.mark.parametrize("additional", [{}, None, {"sharpmax": {"card": None}}])
def test_without_a_card_a_config_stays_as_it_is(engine, tmp_path, additional):
    engine.platform.kind = "cuda"
    plugin.register()
    asked = config(tmp_path, additional_config=additional, backend=FLASH)
    engine.platform.check_and_update_config(asked)
    assert asked.attention_config.backend is FLASH
    engine.platform.check_and_update_config(SimpleNamespace(model_config=None))


def test_another_backend_would_serve_without_the_card(engine, tmp_path):
    engine.platform.kind = "cuda"
    with pytest.raises(ValueError, match="FLASH_ATTN would serve without the card"):
        plugin.prepare(config(tmp_path, backend=FLASH))
    assert len(engine.logged) == 1


@pytest.mark.parametrize(
    ("kind", "eager", "refused"), [("cuda", False, True), ("cuda", True, False), ("cpu", False, False)]
)
def test_a_policy_that_no_cuda_graph_can_hold_is_refused_where_there_are_graphs(engine, tmp_path, kind, eager, refused):
    engine.platform.kind = kind
    asked = config(tmp_path)
    asked.model_config.enforce_eager = eager
    layers = (sharpmax.PAPER, sharpmax.detach(sharpmax.EntropyTarget(0.5)))
    sharpmax.PerLayer(layers).save(tmp_path / "card.json")
    if not refused:
        plugin.prepare(asked)
        return
    with pytest.raises(ValueError, match=r"solved for by PyTorch, which no CUDA graph can hold; add --enforce-eager"):
        plugin.prepare(asked)
    assert len(engine.logged) == 1


def test_another_kind_of_device_is_refused(engine, tmp_path):
    engine.platform.kind = "tpu"
    with pytest.raises(ValueError, match="not on stand-in"):
        plugin.prepare(config(tmp_path))


def test_a_card_that_cannot_be_served_is_logged_in_a_line_of_its_own(engine, tmp_path):
    asked = config(tmp_path)
    (tmp_path / "card.json").write_text("not JSON")
    with pytest.raises(ValueError, match="not a usable policy card"):
        plugin.prepare(asked)
    assert [line.count("\n") for line in engine.logged] == [0]
