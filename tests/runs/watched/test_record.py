"""The record: whole lines, whatever happens to the disk; the training hears of it once."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from sharpmax.files import atomic
from sharpmax.runs.watched import Record, RecordStoppedWarning, read_record
from sharpmax.runs.watched.movers import series

ABOUT = {"layers": ["a"], "heads": [2], "every": 1}


def step(number):
    return {"step": number, "maximum": [[1.0, 2.0]]}


def test_lines_come_back(tmp_path):
    record = Record(tmp_path)
    for number in range(3):
        record.append(ABOUT, step(number))
        assert [line["step"] for line in read_record(tmp_path).steps] == list(range(number + 1))  # at once
    record.close()


@pytest.mark.parametrize("how", ["nothing", "half a line"])
def test_a_full_disk_ends_the_record_with_one_warning(tmp_path, how):
    record = Record(tmp_path)
    record.append(ABOUT, step(0))
    real = record._open

    class Full:
        def write(self, line):
            if how == "half a line":
                return real.write(line[: len(line) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

        def __getattr__(self, name):
            return getattr(real, name)

    record._open = Full()
    with pytest.warns(RecordStoppedWarning, match="ends before step 1: No space left on device; the training goes on"):
        record.append(ABOUT, step(1))
    record.append(ABOUT, step(2))  # no second warning: they are errors here
    assert [line["step"] for line in read_record(tmp_path).steps] == [0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_a_device_that_is_really_full(tmp_path):
    record = Record(tmp_path)
    record.append(ABOUT, step(0))
    record.close()
    said = pytest.warns(RecordStoppedWarning, match="No space left")
    with Path("/dev/full").open("ab", buffering=0) as record._open, said:
        record.append(ABOUT, step(1))


def test_a_folder_that_cannot_be_written_ends_it_too(tmp_path):
    (tmp_path / "file").write_text("")
    record = Record(tmp_path / "file" / "run")
    with pytest.warns(RecordStoppedWarning, match="Not a directory"):
        record.append(ABOUT, step(0))
    record.append(ABOUT, step(1))


def test_a_read_only_folder_ends_it_too(tmp_path, monkeypatch):
    def refuse(path, content):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(atomic, "write_bytes", refuse)
    record = Record(tmp_path)
    with pytest.warns(RecordStoppedWarning, match="Read-only file system"):
        record.append(ABOUT, step(0))
    record.append(ABOUT, step(1))


OF_HEADS = '{"watched": 1, "layers": ["a"], "heads": %s}\n{"step": 0}\n'


@pytest.mark.parametrize(
    "content",
    [
        *("", "{}\n", '{"watched": 2}\n', "no json\n", '{"watched": 1, "layers": []}\n', "[" * 100_000 + "\n"),
        *(OF_HEADS % heads for heads in ('["two"]', "[-1]", "[1000000000]", "[true]", "[0]", '"2"')),
    ],
    ids=lambda content: content[:60],
)
def test_another_file_is_refused(tmp_path, content):
    (tmp_path / "watch.jsonl").write_text(content)
    with pytest.raises(ValueError, match="not the record of a watched run"):
        read_record(tmp_path)


def test_a_run_that_begins_anew_drops_the_old_lines(tmp_path):
    for first in (0, 0):
        record = Record(tmp_path, step=first)
        record.append(ABOUT, step(0))
        record.append(ABOUT, step(1))
        record.close()
    lines = (tmp_path / "watch.jsonl").read_text().splitlines()
    assert [json.loads(line).get("step") for line in lines] == [None, 0, 1]


@pytest.mark.parametrize("numbers", [[0, 1, 0, 1], [1, 0], [0, 0], [-4], [0, 10**30]])
def test_steps_that_do_not_rise_are_refused(tmp_path, numbers):
    lines = [{"watched": 1, **ABOUT}, *map(step, numbers)]
    (tmp_path / "watch.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ValueError, match="its steps do not rise"):
        read_record(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        {"step": 0, "maximum": [[1.0, 2.0, 9.0]]},  # would be told of a head that is not there
        {"step": 0, "maximum": [[1.0, 2.0], [3.0]]},
        {"step": 0, "maximum": [1.0, 2.0]},
        {"step": 0, "maximum": [["a", "b"]]},
        {"step": 0, "maximum": None},
        {"step": 0, "loss": "low"},
        {"step": 0, "loss": [1.0]},
        {"step": 0, "warned": [{"kind": "growth"}]},
        {"step": 0, "warned": [{"kind": "growth", "layer": 4, "head": 0, "value": 1.0}]},
        {"step": True},
        {"step": 0, "warned": [{"layer": 0, "head": 0, "value": 1.0}]},
        {"step": 0, "warned": [{"kind": {}, "layer": 0, "head": 0, "value": 1.0}]},
        {"step": 0, "loss": float("nan")},
        {"step": 0, "loss": 10**400},
        {"step": 0, "maximum": [[10**400, 2.0]]},
    ],
    ids=lambda line: str(line)[:60],
)
def test_a_reading_of_other_heads_or_without_numbers_is_refused(tmp_path, line):
    (tmp_path / "watch.jsonl").write_text(json.dumps({"watched": 1, **ABOUT}) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(ValueError, match=r"watch.jsonl is not the record of a watched run"):
        read_record(tmp_path)


@pytest.mark.parametrize("told", ['"maximum": [[1e999, 1.0]]', '"maximum": [[1.0, 2.0]], "maximum": [[9.0, 9.0]]'])
def test_a_number_beyond_all_or_a_name_that_stands_twice_is_refused(tmp_path, told):
    """Python's reader takes the one for infinity, and the last of the others."""
    line = '{"step": 0, ' + told + "}"
    (tmp_path / "watch.jsonl").write_text(json.dumps({"watched": 1, **ABOUT}) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=r"no finite number|stands twice"):
        read_record(tmp_path)


def test_a_layer_that_runs_later_joins_the_record(tmp_path):
    record = Record(tmp_path)
    about = {"layers": ["a", "b"], "heads": [0, 2], "every": 1}
    record.append(about, {"step": 0, "maximum": [[], [1.0, 2.0]]})
    record.append({**about, "heads": [1, 2]}, {"step": 1, "maximum": [[5.0], [3.0, 4.0]]})
    record.close()
    found = read_record(tmp_path)
    assert found.about["heads"] == [1, 2]
    expected = [[np.nan, 5.0], [1.0, 3.0], [2.0, 4.0]]
    np.testing.assert_array_equal(series(found, "maximum"), expected)
    again = Record(tmp_path)  # a run that continues, in which it has not run yet
    again.append(about, {"step": 2, "maximum": [[], [1.0, 2.0]]})
    again.close()
    assert read_record(tmp_path).about["heads"] == [1, 2]
    assert len(read_record(tmp_path).steps) == 3
