"""Files are absent, old or new; never half."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sharpmax.files import atomic


def test_a_process_killed_while_writing_leaves_the_old_file(tmp_path):
    file = tmp_path / "value.json"
    atomic.write_json(file, "old")
    killed_before_the_move = f"""
import os, pathlib
from sharpmax.files import atomic
pathlib.Path.replace = lambda *_: os.kill(os.getpid(), {int(signal.SIGKILL)})
atomic.write_json(pathlib.Path({str(file)!r}), "new")
"""
    assert subprocess.run([sys.executable, "-c", killed_before_the_move]).returncode == -signal.SIGKILL
    assert json.loads(file.read_text()) == "old"


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="disk full"):
        atomic.write_text(tmp_path / "value.txt", "new")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path):
    code = f"""
import pathlib, resource, signal
from sharpmax.files import atomic
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    atomic.write_bytes(pathlib.Path({str(tmp_path / "value")!r}), bytes(10_000_000))
except OSError as error:
    print(error.filename, error.strerror)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == f"{tmp_path / 'value'} File too large\n"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_written_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, Path()):
        with pytest.raises(IsADirectoryError, match="expected the path of a file, got a folder"):
            atomic.write_text(folder, "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["a pipe", "a link to it", "an open file"])
def test_a_device_or_a_pipe_is_not_replaced(kind, tmp_path):
    """`--json /dev/stdout` put a file in the place of the machine's own /dev/stdout."""
    place = tmp_path / "place"
    os.mkfifo(tmp_path / "pipe")
    if kind == "a pipe":
        place = tmp_path / "pipe"
    else:
        place.symlink_to(tmp_path / "pipe" if kind == "a link to it" else "/proc/self/fd/1")
    for write in (lambda: atomic.write_text(place, "x"), lambda: atomic.require_writable(place)):
        with pytest.raises(OSError, match="expected the path of a regular file, got a device or a pipe"):
            write()
    assert place.is_symlink() == (kind != "a pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path):
    (tmp_path / "theirs").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    atomic.write_text(tmp_path / "link", "ours")
    assert [(tmp_path / name).read_text() for name in ("theirs", "link")] == ["kept", "ours"]


def test_arrays_become_numbers(tmp_path):
    atomic.write_json(tmp_path / "a.json", {"row": np.arange(3), "one": np.float64(0.1)})
    assert json.loads((tmp_path / "a.json").read_text()) == {"row": [0, 1, 2], "one": 0.1}


@pytest.mark.parametrize(
    ("value", "error"), [(float("nan"), ValueError), (float("inf"), ValueError), (object(), TypeError)]
)
def test_what_json_cannot_hold_is_refused(value, error, tmp_path):
    with pytest.raises(error):
        atomic.write_json(tmp_path / "a.json", value)
    assert not (tmp_path / "a.json").exists()


def test_a_new_file_is_readable_by_others(tmp_path):
    atomic.write_text(tmp_path / "a.txt", "a")
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("name", ["", "file/inside"])
def test_require_writable_refuses_what_cannot_be_written(name, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"folder|exists|directory"):
        atomic.require_writable(tmp_path / name)


def test_asking_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "a" / "b" / "file", Path("a/b/file"), Path("file")):
        atomic.require_writable(path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OSError, match="gone"):
        atomic.require_writable(tmp_path / "gone" / "file")
