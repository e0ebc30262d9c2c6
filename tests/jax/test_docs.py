"""The examples of docs/jax.md and docs/mesh.md run as they stand, and print what they say they print."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.mark.parametrize("page", ["jax.md", "mesh.md"])
def test_examples_print_what_they_say(page, capsys):
    text = (DOCS / page).read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    said = re.findall(r"^print\(.*\)  # (.*)$", "".join(examples), re.MULTILINE)
    assert said
    names: dict = {}
    for example in examples:  # one after the other: a later one may use what an earlier one made
        exec(compile(example, page, "exec"), names)
    assert capsys.readouterr().out.splitlines() == said
