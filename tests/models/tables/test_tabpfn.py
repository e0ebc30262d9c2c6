"""TabPFN v1 as its authors run it: their weights, their numbers; and a checkpoint that would run code is refused."""

import os
import pickle

import pytest
import torch

from sharpmax.models.tables import tabpfn
from tests.models.tables.small_model import small_model

# The authors' own forward pass (tabpfn 0.1 from PyPI, their normalisation) on the table of `waves`, as log odds.
THEIRS = (2.325887680, 2.185631752, -2.113455296, -1.886002779)


def waves():
    i = torch.arange(24.0)
    rows = torch.stack([torch.sin(0.7 * i), torch.cos(1.3 * i), torch.sin(0.1 * i * i)], -1).double()
    return rows, (rows[:20, 0] + rows[:20, 1] > 0).long()


@pytest.mark.slow
def test_the_authors_weights_give_the_authors_numbers():
    model = tabpfn.load()
    assert (model.layers, model.heads, model.features, model.classes) == (12, 4, 100, 10)
    said = tabpfn.answer(model, *waves())
    odds = (said[:, 1] - said[:, 0]) * tabpfn.TEMPERATURE
    torch.testing.assert_close(odds, torch.tensor(THEIRS), atol=1e-4, rtol=0)


def test_answers_are_log_probabilities_of_the_classes_that_there_are():
    said = tabpfn.answer(small_model(), *waves(), classes=3)
    assert said.shape == (4, 3)
    torch.testing.assert_close(said.exp().sum(-1), torch.ones(4))


@pytest.mark.parametrize("classes", [1, 5])
def test_too_few_or_too_many_classes_are_refused(classes):
    with pytest.raises(ValueError, match=f"expected 2 to 4 classes, got {classes}"):
        tabpfn.answer(small_model(), *waves(), classes=classes)


class Runs:
    """A pickle of it makes a folder when it is read."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def checkpoint(state):
    config = dict.fromkeys(tabpfn.KEPT, 4) | {"num_classes": "a name"}
    return {f"module.{name}": tensor for name, tensor in state.items()}, None, config


def test_a_checkpoint_becomes_safetensors(tmp_path):
    model = small_model()
    torch.save(checkpoint(dict(model.weights)), tmp_path / tabpfn.CHECKPOINT)
    (tmp_path / tabpfn.METADATA).write_text("License: MIT")
    tabpfn._convert(tmp_path, tmp_path / "made")
    found = tabpfn.load_file(tmp_path / "made" / "model.safetensors")
    assert found.keys() == model.weights.keys()
    assert all(torch.equal(found[name], model.weights[name]) for name in found)
    assert {file.name for file in (tmp_path / "made").iterdir()} == {
        "model.safetensors", "config.json", "LICENSE", tabpfn.METADATA,
    }  # fmt: skip


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path):
    torch.save((Runs(tmp_path / "ran"), None, {}), tmp_path / tabpfn.CHECKPOINT)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        tabpfn._convert(tmp_path, tmp_path / "made")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("known", [[0, 1, 3], [-1, 0, 1]])
def test_a_class_that_there_is_not_is_refused(known):
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="expected classes from 0 to 2, got"):
        tabpfn.answer(small_model(), rows, torch.tensor(known), classes=3)
