"""`bench --draw` of a file from a stranger: refused by name in one line, and nothing in it commands the terminal."""

import re

import pytest

from sharpmax.cli import main

OTHERS = [
    "[[]]",
    "[5]",
    '[{"case": 5}]',
    '[{"case": "[/x]", "length": "\\u001b[2J"}]',
    '[{"case": "forward", "length": {}, "width": [], "implementation": null}]',
    "5",
    '{"a": 1}',
    "[NaN]",
    "[" * 500,
]


@pytest.mark.parametrize("results", OTHERS)
def test_the_figures_of_something_else_are_refused_by_name(results, tmp_path, capsys):
    file = tmp_path / "other.json"
    file.write_text(f'{{"results": {results}}}')
    assert main(["bench", "attention", "--draw", str(file)]) == 2
    out, error = capsys.readouterr()
    assert re.fullmatch(rf"sharpmax: error: {file} is not what bench (attention )?--json wrote: .*\n", error)
    assert "\x1b" not in out


@pytest.mark.parametrize("beside", [["--lengths", "32"], ["--json", "new.json"]])
def test_an_option_that_draw_would_not_read_is_refused(beside, tmp_path, capsys):
    assert main(["bench", "attention", "--draw", str(tmp_path / "a.json"), *beside]) == 2
    assert f"leave out {beside[0].removeprefix('--')}" in capsys.readouterr().err
