"""The list of benchmarks: its help names the defaults that run, and what cannot be measured is refused."""

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


REFUSED = {
    "attention": [
        ({"repeats": 0}, "repeats of at least 1, got 0"),
        ({"lengths": [64, 0]}, "lengths of at least 1, got 0"),
        ({"only": ["ours", "xformers"]}, r"expected parts among ours.*got xformers"),
        ({"framework": "mlx"}, "torch or jax, got 'mlx'"),
        ({"framework": "jax", "repeats": 0}, "repeats of at least 1, got 0"),
        ({"framework": "jax", "only": ["flex"]}, "expected parts of jax among ours, policies, memory, got flex"),
    ],
    "diagnose": [({"model": "rxnmapper", "length": 4096}, "a length from 128 to 512")],
    "finetune": [({"steps": 1}, "at least 2 steps")],
    "model": [
        ({"policies": ("zz",)}, "expected policies among constant, paper, card, entropy-target, got zz"),
        ({"only": ("decode",)}, "expected cases among generate, prefill"),
        ({"lengths": (1,)}, "expected lengths of at least 2, got 1"),
        ({"seconds": float("nan")}, "expected seconds of at least 0, got nan"),
        ({"seconds": -1.0}, "expected seconds of at least 0, got -1"),
        ({"card": "card.json", "policies": ("paper",)}, "a card is timed as the policy card"),
    ],
    "serving": [
        ({"only": ["other"]}, "expected parts among decode, batching, got other"),
        ({"repeats": 0}, "repeats of at least 1"),
        ({"device": "nowhere"}, "nowhere"),
    ],
    "training-step": [({"steps": 0}, "steps of at least 1")],
    "watch": [
        ({"device": "cpu", "repeats": 0}, "at least 1 repeat and 64 tokens"),
        ({"device": "cpu", "tokens": 8}, "at least 1 repeat and 64 tokens"),
        ({"device": "cpu", "tokens": 0}, "at least 1 repeat and 64 tokens"),
        ({"device": "cpu", "seconds": float("nan")}, "seconds of at least 0"),
        ({"device": "cpu", "seconds": -1.0}, "seconds of at least 0"),
    ],
}


@pytest.mark.parametrize(
    ("name", "options", "says"), [(name, *case) for name, cases in REFUSED.items() for case in cases]
)
def test_what_cannot_be_measured_is_refused(name, options, says):
    (benchmark,) = (one for one in BENCHMARKS if one.name == name)
    with pytest.raises(ValueError, match=says):
        import_module(benchmark.module).measure(**options)
