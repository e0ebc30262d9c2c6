"""Committed records as the tests read them, and two trees of figures as they compare them."""

import json
import tarfile
from pathlib import Path

import pytest

from tests.places import RESULTS


def committed(*place):
    """Return one committed JSON file, by its place under results/."""
    return json.loads(RESULTS.joinpath(*place).read_text())


def steps_of(*place):
    """Return what every step of a committed archive holds, by the step's name."""
    with tarfile.open(RESULTS.joinpath(*place)) as archive:
        steps = [member for member in archive.getmembers() if member.isfile()]
        return {Path(step.name).stem: json.load(archive.extractfile(step))["value"] for step in steps}


def assert_same(found, expected, *, rel=1e-9, absolute=1e-12, place=()):
    """Assert that two trees are equal, as JSON has them, but for the rounding of their floats."""
    if isinstance(expected, dict | list):
        keys = list(expected) if isinstance(expected, dict) else range(len(expected))
        assert len(found) == len(expected), place
        for key in keys:
            assert_same(found[key], expected[key], rel=rel, absolute=absolute, place=(*place, key))
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=rel, abs=absolute), place
    else:
        assert found == expected, place
