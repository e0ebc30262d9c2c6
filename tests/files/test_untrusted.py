"""Files from strangers: bounded, regular, named; and read in linear time whatever they hold."""

import json
import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharpmax.files.inside import inside
from sharpmax.files.untrusted import Limits, read_bytes, read_json

TEXT = st.text(st.characters(codec="utf-8"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)


@settings(max_examples=30)
@given(VALUES)
def test_all_json_within_the_limits_is_read_as_it_is(tmp_path_factory, value):
    file = tmp_path_factory.getbasetemp() / "value.json"
    for spelled in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        file.write_text(spelled, encoding="utf-8")
        assert read_json(file) == value


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[[[[]]]]", "nested more than 3 deep"),
        (b'{"a": [{"b": {}}]}', "nested more than 3 deep"),
        (b"[1, 2, 3, 4, 5, 6]", "more than 6 values"),
        (b"[[], [], [], [1]]", "more than 6 values"),
        (b"[" + b" " * 100 + b"]", "larger than"),
        (b"[NaN]", "NaN is not a finite number"),
        (b"[-Infinity]", "-Infinity is not a finite number"),
        (b"[1e400]", "1e400 is not a finite number"),
        (b'{"a": 1, "a": 2}', "the name 'a' stands twice"),
        (b"[\xff]", "utf-8"),
        (b"[", "Expecting value"),
        (b"", "Expecting value"),
    ],
)
def test_what_is_beyond_the_limits_is_refused_by_name(content, reason, tmp_path):
    file = tmp_path / "value.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{file} is not a page: .*; write it again$") as refused:
        read_json(file, expected="a page", advice="write it again", limits=Limits(size=64, depth=3, values=6))
    assert reason in str(refused.value)


def test_brackets_and_commas_inside_texts_are_text(tmp_path):
    file = tmp_path / "value.json"
    value = ["[[[[,,,,,,,,\\", '"[[[[', "\\\\"]
    file.write_text(json.dumps(value))
    assert read_json(file, limits=Limits(depth=1, values=4)) == value


@pytest.mark.parametrize("content", [b'"' + b'\\"' * 2_000_000, b"[" * 4_000_000, b'"' * 4_000_000, b"1" * 4_000_000])
def test_no_file_takes_long_to_refuse(content, tmp_path):
    (tmp_path / "value.json").write_bytes(content)
    began = time.process_time()
    with pytest.raises(ValueError, match=r"value\.json is not JSON"):
        read_json(tmp_path / "value.json")
    assert time.process_time() - began < 5


@pytest.mark.parametrize("reader", [read_json, read_bytes])
def test_only_regular_files_are_read(reader, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a pipe"), ("/dev/zero", "a device"), (tmp_path, "a folder")):
        with pytest.raises(ValueError, match=rf"{path} is not a card: it is {kind}, expected a regular file"):
            reader(path, expected="a card")
    with pytest.raises(FileNotFoundError):
        reader(tmp_path / "none", expected="a card")


@pytest.mark.parametrize("name", ["a", "b/c", "b/../a", "b/./c", "link"])
def test_a_path_inside_is_returned(name, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert inside(tmp_path, name) == (tmp_path / name).resolve()


@pytest.mark.parametrize("name", ["..", "../a", "b/../../a", "/etc/passwd", "out", "out/a", "loop", "a\0"])
def test_a_path_that_leads_out_is_refused(name, tmp_path):
    (tmp_path / "out").symlink_to("/etc")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ValueError, match="a path inside"):
        inside(tmp_path, name)
