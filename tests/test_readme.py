"""The examples of the README run as they stand, and print what they say they print."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES, ids=[f"example{i}" for i in range(1, len(EXAMPLES) + 1)])
def test_example_prints_what_it_says(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    said = re.findall(r"^print\(.*\)  # (.*)$", example, re.MULTILINE)
    assert said
    assert capsys.readouterr().out.splitlines() == said


def test_every_file_it_links_to_exists():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert links
    for link in links:
        assert (Path(__file__).parent.parent / link).exists(), link
