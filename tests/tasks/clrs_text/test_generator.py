"""The generator is DeepMind's own, its text what the whole package with TensorFlow gave, and nothing of it lingers."""

import hashlib
import json
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from sharpmax.tasks.clrs_text.examples import ALGORITHMS, stream
from sharpmax.tasks.clrs_text.generator import clrs_generator, source_folder

RECORDED = json.loads((Path(__file__).parent / "hashes.json").read_text())


def test_all_thirty_algorithms_were_recorded_with_the_real_tensorflow():
    assert {name.split("-")[0] for name in RECORDED["sha256"]} == set(ALGORITHMS)
    assert len(ALGORITHMS) == 30
    assert RECORDED["versions"]["tensorflow"] >= "2.17"
    assert len(RECORDED["sha256"]) == 30 * 2 * 3


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_text_is_what_the_real_package_generated(algorithm):
    for name, recorded in RECORDED["sha256"].items():
        of, length, kind = name.split("-")
        if of == algorithm:
            examples = stream(algorithm, int(length), seed=RECORDED["seed"], hints=kind == "hints")
            text = "".join(e.question + e.answer for e in islice(examples, RECORDED["samples"]))
            assert hashlib.sha256(text.encode()).hexdigest()[:16] == recorded, name


def test_neither_tensorflow_nor_clrs_stays_imported_and_random_is_untouched():
    random.seed(5)
    state = random.getstate()
    next(stream("bfs", 4, seed=0))
    assert random.getstate() == state
    assert not {name.split(".")[0] for name in sys.modules} & {"tensorflow", "clrs"}


@pytest.mark.slow
def test_a_tensorflow_that_is_there_stays():
    code = (
        "import sys, types\n"
        "mine = sys.modules['tensorflow'] = types.ModuleType('tensorflow')\n"
        "from sharpmax.tasks.clrs_text.examples import stream\n"
        "next(stream('minimum', 4, seed=0))\n"
        "assert sys.modules['tensorflow'] is mine"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_packages_own_generator_repeats_two_segments_at_every_length():
    """Why few training examples of that algorithm are different: its sampler ignores the length."""
    lengths, asked = list(range(4, 17)), 2741
    drawn = clrs_generator()({"segments_intersect": lengths}, asked, False, 1000)
    assert len({sample["question"] for sample in drawn}) == 246
    first, last = (stream("segments_intersect", length, seed=1000) for length in (lengths[0], lengths[-1]))
    assert [e.question for e in islice(first, 50)] == [e.question for e in islice(last, 50)]


def test_the_licence_lies_beside_the_source():
    clrs_generator()
    assert "Apache License" in (source_folder() / "LICENSE").read_text()


def test_a_missing_extra_is_named():
    code = (
        "import sys\nsys.modules['chex'] = None\n"
        "from sharpmax.tasks.clrs_text.examples import stream\n"
        "next(stream('minimum', 4, seed=0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'sharpmax[clrs]'" in done.stderr
