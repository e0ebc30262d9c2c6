"""The list of built-in models: each pinned, each with its licence, each named to the user."""

import re

import pytest

from sharpmax.builtin import BUILTIN
from sharpmax.cli import main


@pytest.mark.parametrize("name", BUILTIN)
def test_every_builtin_pins_its_wheel(name):
    model = BUILTIN[name]
    assert re.fullmatch("[0-9a-f]{64}", model.sha256)
    assert model.restricted == ("non-commercial" in model.license)


def test_the_list_names_every_model_and_its_licence(capsys):
    assert main(["models"]) == 0
    said = capsys.readouterr().out
    assert {model.name for model in BUILTIN.values() if model.name in said and model.license in said} == set(BUILTIN)
