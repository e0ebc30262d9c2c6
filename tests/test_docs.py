"""README and docs: code blocks print what they say, links and commands are real, public names and options are told."""

import argparse
import importlib
import inspect
import re
import shlex
import shutil

import pytest

from sharpmax.commands.options import parser
from tests.documents import PAGES, PRINTED, PYTHON, broken_links, name_of, without_code
from tests.places import ROOT
from tools.tables.__main__ import MARKED, rewritten
from tools.tables.__main__ import PAGES as WITH_TABLES
from tools.tables.records import TABLES

SLOW = {
    "docs/get-started.md",  # SmolLM2
    "docs/guides/calibrate.md",  # SmolLM2
    "docs/guides/diagnose.md",
    "docs/guides/serve.md",
    "docs/results/clrs-text.md",  # the generator of dm-clrs
    "docs/results/models.md",  # IgLM writes 96 chains
}
"""Pages whose examples load a model or take more than some seconds."""
WITH_CODE = [page for page in PAGES if PYTHON.search(page.read_text(encoding="utf-8"))]


def run_blocks(page, folder, monkeypatch, capsys):
    """Run a page's blocks one after the other, a later one with what an earlier one made, and compare the output."""
    monkeypatch.chdir(folder)
    shutil.copy(ROOT / "LICENSE", folder)
    text = page.read_text(encoding="utf-8")
    names = {"__name__": "page"}
    for block in PYTHON.findall(text):
        exec(compile(block, name_of(page), "exec"), names)
    printed = [line for block in PYTHON.findall(text) for line in PRINTED.findall(block)]
    assert capsys.readouterr().out.splitlines() == printed


@pytest.mark.filterwarnings("ignore::sharpmax.SilentPolicyWarning")  # docs/guides/calibrate.md shows when it comes
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=name_of(page), marks=[pytest.mark.slow] * (name_of(page) in SLOW)) for page in WITH_CODE],
)
def test_every_block_prints_what_it_says(page, tmp_path, monkeypatch, capsys):
    run_blocks(page, tmp_path, monkeypatch, capsys)


def test_a_block_that_prints_something_else_is_found(tmp_path, monkeypatch, capsys):
    page = ROOT / "docs" / "concepts" / "certificates.md"
    (wrong := tmp_path / "wrong.md").write_text(page.read_text(encoding="utf-8").replace("n = 297", "n = 298"))
    monkeypatch.setattr("tests.test_docs.name_of", lambda _: "wrong.md")
    with pytest.raises(AssertionError):
        run_blocks(wrong, tmp_path, monkeypatch, capsys)


def test_no_slow_page_is_listed_that_is_not_there():
    assert {name_of(page) for page in WITH_CODE} >= SLOW


def test_every_link_leads_to_a_file_and_a_heading():
    assert {name_of(page): broken for page in PAGES if (broken := broken_links(page))} == {}


def test_a_broken_link_is_found(tmp_path):
    (page := tmp_path / "page.md").write_text("# One\n\n[a](page.md#one) [b](page.md#two) [c](gone.md) [d](#one)\n")
    assert broken_links(page) == ["page.md#two", "gone.md"]


def parsers(of=None, known=None):
    """Return every command's parser by its name, as `sharpmax reproduce bounds`."""
    of, known = of or parser(), {} if known is None else known
    known[of.prog] = of
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                parsers(one, known)
    return known


PARSERS = parsers()
COMMAND = re.compile(
    r"^(?:    |\$ |(?=sharpmax \S+ (?:-|\./|http)))(?:\w+=\S+ )*(sharpmax [a-z][^`\n]*)$", re.MULTILINE
)
NAMED = re.compile(r"`(sharpmax [a-z][^`]*)`")


def unknown_options(command):
    """Return what of a command line is no command or option of ours."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        words = command.split()
    name = " ".join(words[:2])
    if name not in PARSERS:
        return [name]
    name = f"{name} {words[2]}" if len(words) > 2 and f"{name} {words[2]}" in PARSERS else name
    options = PARSERS[name]._option_string_actions | PARSERS[" ".join(words[:2])]._option_string_actions
    return [word for word in words if word.startswith("--") and word not in options]


def commands_in(text):
    return [" ".join(found.split()) for found in [*COMMAND.findall(text), *NAMED.findall(text)]]


def test_every_command_in_the_docs_exists_with_its_options():
    wrong = {}
    for page in PAGES:
        for command in commands_in(page.read_text(encoding="utf-8")):
            if unknown := unknown_options(command):
                wrong.setdefault(name_of(page), []).append((command, unknown))
    assert wrong == {}


@pytest.mark.parametrize("command", ["sharpmax heal smollm2", "sharpmax diagnose smollm2 --tusk lookup"])
def test_a_command_that_is_none_is_found(command):
    assert commands_in(f"    {command}\n") == [command]
    assert unknown_options(command)


def arguments():
    return [
        (name, action)
        for name, one in PARSERS.items()
        for action in one._actions
        if not isinstance(action, argparse._SubParsersAction)
    ]


def test_every_option_has_a_help_text():
    assert [(name, action.dest) for name, action in arguments() if not action.help] == []


def test_every_command_has_a_sentence_and_two_examples_that_work():
    for name, one in PARSERS.items():
        assert one.description, name
        assert re.findall(r"\.(?=\s|$)", one.description) == ["."], name
        examples = [line.strip() for line in one.epilog.splitlines() if line.startswith("  sharpmax ")]
        assert len(examples) >= 2, name
        assert {example: unknown_options(example) for example in examples if unknown_options(example)} == {}


@pytest.mark.parametrize(("flag", "units"), [("--steps", "step"), ("--tokens", "token"), ("--timeout", "second")])
def test_numbers_name_their_unit(flag, units):
    told = [action.help for _, action in arguments() if flag in action.option_strings]
    assert told
    assert all(units in text for text in told)


def test_every_option_is_in_the_reference():
    """In the section of its command; what every experiment takes stands once, at `sharpmax reproduce`."""
    parts = re.split(
        r"^#{2,3} (sharpmax .*)$", (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8"), flags=re.M
    )
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    missing = []
    for name, action in arguments():
        flags = [flag for flag in action.option_strings if flag not in ("-h", "--help", "--version")]
        told = sections.get(name, "") + sections["sharpmax reproduce"] * name.startswith("sharpmax reproduce ")
        missing += [(name, flag) for flag in flags if flag not in told]
    assert missing == []


SHARED = {"help", "version", "accept_license"}


def test_every_option_stands_in_a_named_group_and_a_number_shows_its_default():
    """A named group says what an option is for; a file or an address that is left out has no default."""
    ungrouped, bare = [], []
    for name, one in PARSERS.items():
        shown = one._get_formatter()
        for group in one._action_groups:
            for action in group._group_actions:
                if action.option_strings and group.title == "options" and action.dest not in SHARED:
                    ungrouped.append((name, action.dest))
                if action.type in (int, float) and not re.search(r"default\b", shown._get_help_string(action)):
                    bare.append((name, action.dest))
    assert ungrouped == []
    assert bare == []


PUBLIC = (
    "sharpmax", "sharpmax.torch", "sharpmax.torch.paged", "sharpmax.torch.distributed", "sharpmax.jax",
    "sharpmax.jax.mesh", "sharpmax.jax.flax", "sharpmax.jax.equinox", "sharpmax.hf", "sharpmax.fitting",
    "sharpmax.dispersion",
)  # fmt: skip


def public_functions():
    found = {}
    for module in PUBLIC:
        package = importlib.import_module(module)
        found |= {f"{module}.{name}": getattr(package, name) for name in package.__all__}
    return found


def test_every_public_name_is_in_the_reference_with_a_docstring():
    reference = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("api-*.md"))
    for name, thing in public_functions().items():
        assert inspect.getdoc(thing), name
        module, _, last = name.rpartition(".")
        if not inspect.ismodule(thing):
            assert re.search(rf":: {re.escape(module)}\.(?:\w+\.)?{last}$", reference, re.MULTILINE), name


NEVER_RAISE = {
    "sharpmax.jax.collecting",
    "sharpmax.jax.reading_of",
    "sharpmax.jax.register_policies",
    "sharpmax.jax.mesh.bytes_moved",
    "sharpmax.dispersion.quantities",
}


def test_every_public_function_says_what_it_does_shows_an_example_and_names_its_errors():
    for name, thing in public_functions().items():
        if inspect.isfunction(thing):
            told = inspect.getdoc(thing)
            first = told.splitlines()[0]
            assert first.endswith("."), name
            assert not re.match(r"(The|A|An|It|This|[a-z])\b", first), name
            assert ">>>" in told, name
            assert "Raises:" in told or name in NEVER_RAISE, name


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_bytes()) < 8192


def test_every_page_is_in_the_site():
    """Each page is named by a list of contents, so that a reader can come to it."""
    listed = set()
    for page in PAGES:
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.S | re.M):
            for entry in block.split():
                if not entry.startswith(":"):
                    listed |= {one.resolve() for one in page.parent.glob(f"{entry}.md")}
    pages = {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - {ROOT / "docs" / "index.md"}
    assert {name_of(page) for page in pages - listed} == set()


@pytest.mark.parametrize("page", WITH_TABLES, ids=name_of)
def test_writing_the_tables_again_changes_nothing(page):
    assert rewritten(page) == page.read_text(encoding="utf-8"), "run `make tables`"


def test_every_table_stands_in_a_page_and_no_marker_is_half_open():
    texts = [page.read_text(encoding="utf-8") for page in WITH_TABLES]
    assert {name for text in texts for name, _ in MARKED.findall(text)} == set(TABLES)
    for text in texts:
        assert len(re.findall(r"^<!-- /?table", text, re.MULTILINE)) == 2 * len(MARKED.findall(text))


def test_pages_are_read_without_their_code():
    assert "sharpmax.softmax(logits" not in without_code(ROOT / "docs" / "get-started.md")
