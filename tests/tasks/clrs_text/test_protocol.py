"""The lengths are those of the published generator's own defaults, and every length is of one span."""

import ast

import pytest

from sharpmax.tasks.clrs_text.examples import ALGORITHMS
from sharpmax.tasks.clrs_text.generator import clrs_generator, source_folder
from sharpmax.tasks.clrs_text.protocol import SPANS, asked_lengths, span_of, trained_lengths


def published(name):
    """Return a constant of the published script, which imports TensorFlow and so is only read."""
    clrs_generator()  # fetches the package
    script = source_folder() / "clrs" / "_src" / "clrs_text" / "generate_clrs_text.py"
    (value,) = [
        node.value
        for node in ast.parse(script.read_text()).body
        if isinstance(node, ast.Assign) and node.targets[0].id == name
    ]
    return eval(compile(ast.Expression(value), str(script), "eval"), {"list": list, "range": range})


def test_lengths_are_the_published_ones():
    trained = published("_DEFAULT_TRAIN_ALGOS_AND_LENGTHS")
    asked = published("_DEFAULT_VAL_ALGOS_AND_LENGTHS")
    assert {name: list(trained_lengths(name)) for name in ALGORITHMS} == trained
    assert {name: list(asked_lengths(name)) for name in ALGORITHMS} == asked


def test_every_length_is_of_one_span():
    spans = {length: span_of("bubble_sort", length) for length in asked_lengths("bubble_sort")}
    assert [length for length, span in spans.items() if span == SPANS[0]] == [4, 5, 10]
    assert [length for length, span in spans.items() if span == SPANS[1]] == [6, 7, 8, 9]
    assert [length for length, span in spans.items() if span == SPANS[2]] == [11]
    with pytest.raises(ValueError, match="unknown algorithm 'bogosort'"):
        trained_lengths("bogosort")
