"""`import sharpmax` is enough: the packages of the frameworks come when they are first used."""

import subprocess
import sys

import pytest

import sharpmax


def assert_runs(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_packages_of_frameworks_come_on_first_use():
    assert_runs(
        "import sys, sharpmax\n"
        "assert {'hf', 'jax', 'torch'} <= set(dir(sharpmax))\n"
        "assert not {'torch', 'jax', 'transformers'} & set(sys.modules)\n"
        "assert sharpmax.torch.attention is sys.modules['sharpmax.torch'].attention\n"
        "assert 'torch' in sys.modules and 'jax' not in sys.modules"
    )


def test_help_works_where_a_framework_is_not_installed():
    assert_runs(
        "import pydoc, sys\n"
        "sys.modules.update(dict.fromkeys(('torch', 'jax', 'transformers')))\n"  # None: not installed
        "import sharpmax\n"
        "told = pydoc.plain(pydoc.render_doc(sharpmax))\n"
        "assert 'stays sharp as inputs grow' in told and 'class EntropyTarget' in told, told[:500]\n"
        "assert 'jax' not in dir(sharpmax)"
    )


def test_what_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'tensorflow'"):
        _ = sharpmax.tensorflow
