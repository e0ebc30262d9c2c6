"""Checksums of a folder: every file in it counts, wherever it lies and whatever it is called."""

import pytest

from sharpmax.files import checksums


def test_a_file_in_a_subfolder_counts_even_by_the_name_of_the_record(tmp_path):
    inner = tmp_path / "part" / checksums.RECORD
    inner.parent.mkdir()
    inner.write_text("{}")
    (tmp_path / "weights").write_text("1")
    checksums.record(tmp_path)
    checksums.require_recorded(tmp_path, "get it anew")
    inner.write_text('{"edited": 1}')
    with pytest.raises(OSError, match="its sha256 differs; get it anew"):
        checksums.require_recorded(tmp_path, "get it anew")


def test_a_record_that_is_no_list_by_file_is_refused(tmp_path):
    (tmp_path / checksums.RECORD).write_text("[1]")
    with pytest.raises(OSError, match=r"checksums\.json is not a list of checksums by file; get it anew"):
        checksums.require_recorded(tmp_path, "get it anew")
