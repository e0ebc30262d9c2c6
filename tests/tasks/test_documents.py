"""Long documents: three splits that share no paragraph, from the package as it is."""

import pytest

from sharpmax.tasks.documents import NO_PROSE, documents, split_of
from sharpmax.tasks.prompts import SPLITS


def paragraphs(split):
    return {" ".join(p.split()) for document in documents(split) for p in document.text.split("\n\n")}


def test_splits_share_no_document_and_no_paragraph():
    by_split = {split: paragraphs(split) for split in SPLITS}
    names = [document.name for split in SPLITS for document in documents(split)]
    assert len(names) == len(set(names)) > 100
    assert not NO_PROSE & set(names)
    for one in SPLITS:
        assert all(split_of(document.name) == one for document in documents(one))
        for other in set(SPLITS) - {one}:
            assert not by_split[one] & by_split[other]


def test_there_are_long_ones_to_report_on_and_none_is_shorter_than_asked():
    long = documents("report", least=150_000)
    assert len(long) >= 8
    assert min(len(document.text) for document in long) >= 150_000


def test_links_are_their_words():
    assert not any(
        "](" in document.text and ".md" in document.text.split("](")[1][:40] for document in documents("fit")
    )


def test_no_other_split_is_known():
    with pytest.raises(ValueError, match="expected a split among fit, choose, report"):
        documents("test")
