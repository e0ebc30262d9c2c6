"""A missing optional dependency is one line that names the extra."""

import sys

import pytest

from sharpmax.extras import MissingExtraError, extra


def test_names_the_module_and_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with (
        pytest.raises(MissingExtraError, match=r"jinja2 is not installed.*pip install 'sharpmax\[report\]'"),
        extra("report"),
    ):
        import jinja2  # noqa: F401


def test_other_errors_pass():
    with pytest.raises(ZeroDivisionError), extra("report"):
        raise ZeroDivisionError
