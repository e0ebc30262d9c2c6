"""The list of benchmarks: its help names the defaults that run."""

import inspect
import re
from importlib import import_module

import pytest

from sharpmax.bench import BENCHMARKS


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda benchmark: benchmark.name)
def test_the_help_gives_the_defaults_of_the_function(benchmark):
    parameters = inspect.signature(import_module(benchmark.module).measure).parameters
    said = {
        flag.removeprefix("--").replace("-", "_"): re.search(r"\(default: ([\d ]+)\)", keywords["help"])
        for flag, keywords in benchmark.options.items()
    }
    numbers = {name: found[1] for name, found in said.items() if found}
    assert numbers
    for name, shown in numbers.items():
        default = parameters[name].default
        assert shown == " ".join(map(str, default if isinstance(default, tuple) else (default,))), name
