"""The fingerprint of a model: the same while it is the same, another one after a step of training."""

import json

import pytest
import torch

from sharpmax.hf.models.identity import fingerprint
from tests.hf.tiny import tiny


def test_the_same_model_twice_and_one_that_was_trained_on():
    one, same, other = tiny("llama"), tiny("llama"), tiny("llama")
    assert fingerprint(one) == fingerprint(same)
    with torch.no_grad():
        next(iter(other.model.parameters())).view(-1)[-1] += 1e-3
    assert fingerprint(other) != fingerprint(one)


@pytest.mark.filterwarnings("ignore")  # PyTorch's, that such quantisation will move
def test_a_quantised_model_has_one_too():
    def quantised(scale):
        loaded = tiny("llama")
        with torch.no_grad():
            loaded.model.model.layers[1].mlp.up_proj.weight.mul_(scale)
        layers = torch.ao.quantization.quantize_dynamic(loaded.model.model, {torch.nn.Linear}, dtype=torch.qint8)
        loaded.model.model = layers
        return loaded

    assert fingerprint(quantised(1)) == fingerprint(quantised(1)) != fingerprint(quantised(2))


@pytest.mark.parametrize("field", ["rms_norm_eps", "max_position_embeddings"])
def test_a_config_counts_beside_the_weights(field):
    one, other = tiny("llama"), tiny("llama")
    setattr(other.model.config, field, 3 * getattr(one.model.config, field))
    assert fingerprint(other) != fingerprint(one)


def test_a_folder_counts_by_its_files_and_not_by_a_card_beside_them(tmp_path):
    from sharpmax.runs.provenance import weights_of_folder

    assert weights_of_folder("smollm2") == {}
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"1")
    before = weights_of_folder(str(folder))
    (folder / "sharpmax.json").write_text(json.dumps({"sharpmax_card": 1}))
    (folder / "README.md").write_text("about it")
    assert weights_of_folder(str(folder)) == before
    (folder / "model.safetensors").write_bytes(b"2")
    assert weights_of_folder(str(folder)) != before
