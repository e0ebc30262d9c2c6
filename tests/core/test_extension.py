"""Extensions as data: what they accept, what a card keeps of them, and which cards an earlier version reads."""

import json

import pytest

from sharpmax.core.cards import Card, load_card, load_policy
from sharpmax.core.extension import (
    DynamicNTK,
    Extension,
    SelfExtend,
    Unscaled,
    Yarn,
    extension_called,
    extension_from_json,
)
from sharpmax.core.policies import Constant
from sharpmax.defaults import SCALINGS

EVERY = [Unscaled(2.0, 64), DynamicNTK(2.0, 64), Yarn(4.0, 64), Yarn(4.0, 64, False), SelfExtend(4.0, 64, 16, 6)]


@pytest.mark.parametrize("extension", EVERY, ids=lambda e: type(e).__name__)
def test_a_card_gives_back_its_extension(tmp_path, extension):
    Card(Constant(1.5), extension=extension).save(tmp_path / "card.json")
    assert load_card(tmp_path / "card.json").extension == extension


def test_a_card_without_one_is_written_as_before(tmp_path):
    Constant(1.5).save(tmp_path / "card.json")
    assert "extension" not in json.loads((tmp_path / "card.json").read_text())
    assert load_card(tmp_path / "card.json").extension is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"type": "Yarn", "factor": 0.5, "trained": 64}, "at least 1"),
        ({"type": "Yarn", "factor": float("nan"), "trained": 64}, "finite"),
        ({"type": "Yarn", "factor": "4", "trained": 64}, "must be a number"),
        ({"type": "Yarn", "factor": 4.0, "trained": 64.0}, "number of tokens"),
        ({"type": "Yarn", "factor": 4.0, "trained": True}, "number of tokens"),
        ({"type": "Yarn", "factor": 4.0, "trained": 64, "temperature": 1}, "True or False"),
        ({"type": "Yarn", "factor": 4.0}, "lacks its field 'trained'"),
        ({"type": "Yarn", "factor": 4.0, "trained": 64, "speed": 1}, "has no field 'speed'"),
        ({"type": "SelfExtend", "factor": 4.0, "trained": 64, "neighbours": 64}, "below the trained 64"),
        ({"type": "SelfExtend", "factor": 4.0, "trained": 64, "group": -1}, "number of tokens"),
        ({"type": "Rope", "factor": 4.0, "trained": 64}, "unknown extension 'Rope'"),
        ({"type": ["Yarn"]}, "unknown extension"),
        ({"factor": 4.0}, 'an object with a "type"'),
        ([], 'an object with a "type"'),
    ],
)
def test_what_is_no_extension_is_refused_in_one_line(content, said):
    with pytest.raises((ValueError, TypeError), match=said) as refused:
        extension_from_json(content)
    assert "\n" not in str(refused.value)


def test_a_card_with_a_damaged_extension_is_refused(tmp_path):
    file = tmp_path / "card.json"
    Card(Constant(1.5), extension=Yarn(4.0, 64)).save(file)
    content = json.loads(file.read_text())
    content["extension"]["factor"] = 0
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"not a usable policy card: Yarn\.factor"):
        load_card(file)
    with pytest.raises(TypeError, match="a card's extension"):
        Card(Constant(1.5), extension="yarn")


def test_the_command_line_names_them_all():
    made = {name: extension_called(name, 2.0, 64) for name in SCALINGS}
    assert {type(each) for each in made.values()} == set(Extension.known.values())
    assert [name for name, each in made.items() if type(each).called != name] == ["yarn-plain"]
    with pytest.raises(ValueError, match="did you mean 'yarn'"):
        extension_called("yarm", 2.0, 64)
    with pytest.raises(TypeError, match="choose one of"):
        Extension(2.0, 64)


def test_a_policy_is_not_read_out_of_a_card_that_extends_the_context(tmp_path):
    file = tmp_path / "card.json"
    Card(Constant(1.5), extension=Unscaled(2.0, 64)).save(file)
    assert load_policy(file) == Constant(1.5)
    Card(Constant(1.5), extension=Yarn(4.0, 64)).save(file)
    with pytest.raises(ValueError, match=r"card.json extends the context by Yarn, .* sharpen\(model, card\) applies"):
        load_policy(file)


def least_group(last, near, trained):
    return next(g for g in range(1, last + 2) if last // g + near - near // g < trained or g > last)


@pytest.mark.parametrize("trained", [2, 3, 17, 64])
def test_the_least_group_is_the_one_that_counting_finds(trained):
    """So no new distance is met, and no more keys share a position than must."""
    for near in range(trained):
        for factor in (1.0, 1.3, 2.0, 5.5, 40.0):
            found = SelfExtend(factor, trained, near)
            assert found.group == least_group(found.context - 1, found.neighbours, trained)


def test_no_extension_is_long_to_read():
    assert SelfExtend(4.0, 2**38, 2**38 - 1).group > 2**30  # counting up to it would take days
    for factor, trained in ((1e300, 64), (4.0, 2**70)):
        with pytest.raises(ValueError, match="reads at most 1,099,511,627,776 tokens"):
            SelfExtend(factor, trained)
