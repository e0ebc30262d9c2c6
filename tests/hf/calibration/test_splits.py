"""The splits of prompts and text: they share nothing, and are the same wherever a paragraph stands."""

from itertools import combinations

import pytest

from sharpmax.hf.calibration import splits
from sharpmax.hf.calibration.splits import KINDS, docstrings_of, questions, text_of, unseen_kind
from sharpmax.tasks.prompts import SPLITS


def test_the_splits_share_nothing():
    drawn = {split: {text for text, _ in questions("lookup", 4, 30, seed=5, split=split)} for split in SPLITS}
    for one, other in combinations(SPLITS, 2):
        assert not drawn[one] & drawn[other]
    parts = {(kind, split): of(split) for kind, of in KINDS.items() for split in SPLITS}
    parts["unseen"] = unseen_kind()
    for one, other in combinations({key: set(text.split("\n\n")) for key, text in parts.items()}.values(), 2):
        assert not one & other
    # Long enough for windows of 4,096: a token has about four characters.
    assert min(map(len, parts.values())) > 5 * 4 * 4096
    assert parts["docstrings", "report"].count("Parameters\n") > 50


def test_a_function_is_in_one_split_in_whichever_module_it_stands(monkeypatch):
    said = {"sort numpy": "Sorted.", "sort numpy.ma": "Sorted, masked.", "add numpy": "A sum.", "max numpy": "Largest."}
    monkeypatch.setattr(splits, "_numpy", lambda: said)
    assert [docstrings_of(split) for split in SPLITS] == ["A sum.", "Largest.", "Sorted.\n\nSorted, masked."]


def test_a_user_text_that_is_none_is_refused_in_one_line(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="binary is not text in UTF-8"):
        text_of("fit", tmp_path / "binary")
