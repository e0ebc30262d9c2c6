"""Tests mirror the package: `tests/a/test_b.py` tests `sharpmax/a/b.py` or the folder `sharpmax/a/b/`."""

import pytest

from tests.places import ROOT

TESTS = ROOT / "tests"
SUITES = {
    # Of the whole project.
    "docs", "examples", "fuzz", "imports", "layout", "makefile", "packaging", "pages", "prose", "serve", "site",
    # Of everything in a folder: what each member obeys, and what is committed of it.
    "contract", "false_gains", "families", "hostile_numbers", "laws", "paper_faults", "real_weights", "soak",
    "extend", "strange_arrays", "survey", "threads", "unseen_keys", "values", "large_beta", "committed", "draw", "run",
    "reproduce",
    # Of a framework's own tools around our code.
    "checkpointing", "compiled_generation", "derivatives", "kernels", "transforms",
}  # fmt: skip
"""Tests of no single module, by the name of their file without `test_`."""


def has_module(test):
    folder, name = ROOT / "sharpmax" / test.relative_to(TESTS).parent, test.stem.removeprefix("test_")
    own_folder = name == folder.name and (folder / "__init__.py").exists()
    return own_folder or (folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists()


def without_module():
    found = {test for test in TESTS.rglob("test_*.py") if not has_module(test)}
    return {test.stem.removeprefix("test_"): str(test.relative_to(ROOT)) for test in found}


def test_every_test_stands_where_its_module_stands():
    strays = [path for name, path in without_module().items() if name not in SUITES]
    assert not strays, "move or rename these tests to match their module, or name the suite in SUITES"


def test_no_suite_is_listed_that_is_not_there():
    assert not SUITES - without_module().keys()


@pytest.mark.parametrize(("path", "expected"), [("core/test_stats.py", True), ("core/test_nothing.py", False)])
def test_the_check_of_the_layout_can_fail(path, expected):
    assert has_module(TESTS / path) is expected
