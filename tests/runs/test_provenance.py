"""Provenance: only what was imported, and only our own commit."""

import subprocess
import sys
from pathlib import Path

import pytest

import sharpmax
from sharpmax.runs import provenance

PACKAGE = Path(sharpmax.__file__).parent


def describe(before: str) -> str:
    code = f"{before}\nfrom sharpmax.runs.provenance import provenance\nprint(provenance())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_lists_a_framework_only_if_it_was_imported():
    assert "'torch'" not in describe("")
    assert "'jax'" in describe("import jax")


def test_there_is_no_commit_outside_a_checkout_or_in_a_foreign_one(tmp_path, monkeypatch):
    monkeypatch.setattr("sharpmax.__file__", str(tmp_path / "sharpmax" / "__init__.py"))
    (tmp_path / "sharpmax").mkdir()
    (tmp_path / "sharpmax" / "__init__.py").touch()
    assert provenance.provenance()["commit"] is None
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", tmp_path, *identity, "commit", "--quiet", "--allow-empty", "-m", "x"], check=True)
    assert provenance.provenance()["commit"] is None
    subprocess.run(["git", "-C", tmp_path, "add", "."], check=True)
    subprocess.run(["git", "-C", tmp_path, *identity, "commit", "--quiet", "-m", "y"], check=True)
    commit = provenance.provenance()["commit"]
    assert len(commit) == 40
    (tmp_path / "sharpmax" / "__init__.py").write_text("changed")
    assert provenance.provenance()["commit"] == f"{commit}-dirty"


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["/somewhere/bin/sharpmax", "reproduce", "--out", "a b"], "sharpmax reproduce --out 'a b'"),
        (["/somewhere/sharpmax/__main__.py", "bench"], "python -m sharpmax bench"),
        ([str(PACKAGE / "experiments" / "some_study.py"), "--all"], "python -m sharpmax.experiments.some_study --all"),
    ],
)
def test_the_command_is_what_one_would_type(argv, command, monkeypatch):
    monkeypatch.setattr(sys, "argv", argv)
    assert provenance.provenance()["command"] == command


def test_a_tree_copied_without_its_history_may_be_told_its_commit(monkeypatch):
    monkeypatch.setenv("SHARPMAX_COMMIT", "abc123")
    assert provenance.provenance()["commit"] == "abc123"
