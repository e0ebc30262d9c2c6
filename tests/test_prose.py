"""The prose of README and docs keeps to the style, and the check finds each kind of fault."""

import pytest

from tests.places import ROOT
from tools.prose.__main__ import main, misspelt
from tools.prose.check import LINE, PARAGRAPH, faults, words_of
from tools.prose.paragraphs import paragraphs

PROMPTS = [ROOT / "sharpmax" / "tasks" / name for name in ("prompts.py", "words.py")]
"""What models are asked: data that records were made with."""


def test_the_pages_have_no_fault(capsys):
    assert main([]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("# Title\n\n" + "word " * 30, f"characters; {LINE} are allowed"),
        (
            "one two three four. " * 5 + "\n" + ("one two three four. " * 5 + "\n") * 4,
            f"words; {PARAGRAPH} are allowed",
        ),
        ("one two three four five\n" * 9, "a sentence of 45 words"),
        ("It was foretold.", "write forecast"),
        ("- a list\n- on three roads", "write code path"),
        ("The *dearest* is not banned,\nbut the dearest is.", "write the most expensive"),
        ("Whoever reads this.", "name the reader"),
        ("One beta, learned a head.", "per row, per head"),
    ],
)
def test_a_planted_fault_is_found(page, fault):
    found = list(faults(page))
    assert len(found) == 1
    assert fault in found[0]


@pytest.mark.parametrize(
    "page",
    [
        "    " + "x " * 100,
        "```\n" + "x " * 100 + "\n```",
        "| " + "x " * 100 + " |",
        "<!-- table: x -->\n" + "x " * 100 + "\n<!-- /table -->",
        "`foretold` is a name",
        "# " + "x " * 100,
    ],
)
def test_code_tables_headings_and_generated_parts_are_no_prose(page):
    assert list(faults(page)) == []


def test_a_misspelt_word_is_found(tmp_path):
    (page := tmp_path / "page.md").write_text("The recieved text.\n")
    assert "recieved" in misspelt([page])[0]
    assert main([str(page)]) == 1


def test_list_items_are_paragraphs_of_their_own():
    found = list(paragraphs("Text.\n\n- one\n  more\n- two\n\nEnd.\n"))
    assert [(one.line, one.text) for one in found] == [(1, "Text."), (3, "one more"), (5, "two"), (7, "End.")]


def test_no_source_file_uses_a_banned_word():
    """Docstrings, comments, messages and help texts keep to the word list too."""
    found = {
        path.relative_to(ROOT).as_posix(): said
        for path in sorted((ROOT / "sharpmax").rglob("*.py"))
        if path not in PROMPTS and (said := list(words_of(path.read_text(encoding="utf-8"), in_source=True)))
    }
    assert found == {}
