"""Policy cards: what is saved comes back, and nothing else is believed."""

import json
import os
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from sharpmax import (
    PAPER,
    Beyond,
    Card,
    Constant,
    EntropyTarget,
    LengthScaled,
    LogLinear,
    PerHead,
    PerLayer,
    Policy,
    Polynomial,
    Table,
    detach,
    load_card,
    load_policy,
    softmax,
)

EVERY = [
    Constant(2.0),
    PAPER,
    Polynomial((1.0, 2.0), threshold=0.1, domain=(0.5, 3.0)),
    EntropyTarget(0.3, maximum=50.0),
    LengthScaled.llama4(),
    LogLinear(a=0.1, b=-0.2),
    Beyond(80, 0.5, power=2),
    Table((0.5, 2.0), (1.0, 3.0)),
    PerHead((PAPER, Constant(1.0))),
    PerLayer((PerHead((PAPER, Constant(1.0))), EntropyTarget(0.5))),
    detach(PAPER),
]


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: type(policy).__name__)
def test_every_policy_comes_back_equal(policy, tmp_path):
    policy.save(tmp_path / "card.json")
    assert load_policy(tmp_path / "card.json") == policy


def test_every_policy_class_is_covered():
    from sharpmax import Policy

    # An experiment may have rules of its own, which are no part of the package's cards.
    ours = {name for name, policy in Policy.known.items() if policy.__module__.startswith("sharpmax.core.")}
    assert {type(policy).__name__ for policy in EVERY} == ours


def test_learned_arrays_are_saved_as_numbers(tmp_path):
    learned = LogLinear(a=torch.tensor([[0.5], [-0.5]], requires_grad=True), c=np.array([[0.1], [0.2]]))
    learned.save(tmp_path / "card.json")
    logits = np.random.default_rng(0).normal(size=(1, 2, 3, 40))
    np.testing.assert_allclose(
        softmax(logits, load_policy(tmp_path / "card.json")),
        softmax(torch.tensor(logits), learned).detach().numpy(),
        atol=1e-7,
    )


def test_a_card_carries_its_provenance(tmp_path):
    policy = Table((0.5, 2.0), (1.0, 3.0))
    policy.save(
        tmp_path / "card.json",
        model="a model",
        data="some text",
        fitted_range={"count": (4, 512)},
        held_out={"accuracy": {"with": 0.9, "without": 0.5}},
        notes="<script>",
    )
    card = load_card(tmp_path / "card.json")
    assert card.policy == policy
    assert card.fitted_range == {"entropy": (0.5, 2.0), "count": (4, 512)}
    assert card.held_out["accuracy"]["with"] == 0.9
    assert json.loads((tmp_path / "card.json").read_text())["sharpmax_card"] == 1


GOOD = {"sharpmax_card": 1, "policy": {"type": "Constant", "inverse_temperature": 2.0}}
FOUR_THOUSAND = {"type": "PerHead", "policies": [GOOD["policy"]] * 4000}
BAD = [
    ("", "Expecting value"),
    ("[]", "sharpmax_card"),
    ("{", "Expecting"),
    (json.dumps({"policy": GOOD["policy"]}), "sharpmax_card"),
    (json.dumps(GOOD | {"sharpmax_card": 2}), "schema is 2"),
    (json.dumps({"sharpmax_card": 1}), "policy"),
    (json.dumps(GOOD | {"surprise": 1}), "no field 'surprise'"),
    (json.dumps(GOOD | {"policy": {"type": "Magic"}}), "unknown policy 'Magic'"),
    (json.dumps(GOOD | {"policy": {"type": ["Constant"]}}), "unknown policy"),
    (json.dumps(GOOD | {"policy": "PAPER"}), 'a "type"'),
    (json.dumps(GOOD | {"policy": {"type": "Constant", "beta": 2}}), "no field 'beta'"),
    (json.dumps(GOOD | {"policy": {"type": "Polynomial"}}), "lacks its field 'coefficients'"),
    (json.dumps(GOOD | {"policy": {"type": "Constant", "inverse_temperature": "2"}}), "a number"),
    (json.dumps(GOOD | {"policy": {"type": "Constant", "inverse_temperature": -2}}), "at least 0"),
    ('{"sharpmax_card": 1, "policy": {"type": "Constant", "inverse_temperature": NaN}}', "NaN is not"),
    (json.dumps(GOOD | {"policy": {"type": "Table", "entropies": 3, "inverse_temperatures": [1]}}), "sequence"),
    (json.dumps(GOOD | {"policy": {"type": "PerHead", "policies": 3}}), "PerHead"),
    (json.dumps(GOOD | {"policy": {"type": "PerHead", "policies": []}}), "at least one policy"),
    (json.dumps(GOOD | {"fitted_range": {"entropy": 3}}), "low, high"),
    (json.dumps(GOOD | {"fitted_range": {"entropy": [3, 1]}}), "low, high"),
    (json.dumps(GOOD | {"fitted_range": {"entropy": [True, False]}}), "must be a number"),
    (json.dumps(GOOD | {"fitted_range": {"width": [1, 3]}}), "names statistics"),
    (json.dumps(GOOD | {"sharpmax_card": True}), "schema is True"),
    (json.dumps(GOOD | {"policy": {"type": "Constant", "inverse_temperature": GOOD["policy"]}}), "a number"),
    (json.dumps(GOOD | {"policy": {"type": "Constant", "inverse_temperature": []}}), "at least one number"),
    (json.dumps(GOOD | {"policy": {"type": "Constant", "inverse_temperature": [[1.0], [1.0, 2.0]]}}), "one length"),
    (json.dumps(GOOD | {"policy": {"type": "EntropyTarget", "target": 1.0, "maximum": [9.0]}}), "must be a number"),
    (json.dumps(GOOD | {"policy": {"type": "Polynomial", "coefficients": 3}}), "sequence of numbers"),
    ('{"sharpmax_card": 1, "sharpmax_card": 1, "policy": {"type": "Constant"}}', "stands twice"),
    ('{"sharpmax_card": 1, "held_out": {"a": 1e999}, "policy": {"type": "Constant"}}', "1e999 is not"),
    (json.dumps(GOOD)[:-4] + "9" * 400 + "}}", "at most 1e+18"),
    ('{"sharpmax_card": 1, "policy": ' + '{"type": "Detached", "policy": ' * 5000, "nested more than 64 deep"),
    ('{"sharpmax_card": 1, "held_out": ' + "[" * 200_000 + "]" * 200_000 + "}", "nested more than 64 deep"),
    ('{"sharpmax_card": 1, "held_out": [' + "0," * 1_000_000 + "0]}", "more than 1,000,000 values"),
    ('{"notes": "' + "x" * 2**24 + '"}', "larger than 16 MiB"),
    (json.dumps(GOOD | {"policy": {"type": "Polynomial", "coefficients": [0.5] * 3000}}), "3,000 items"),
    (json.dumps(GOOD | {"policy": {"type": "Polynomial", "coefficients": [0.5] * 300_000}}), "300,000 items"),
    (json.dumps(GOOD | {"policy": {"type": "PerLayer", "policies": [FOUR_THOUSAND] * 6}}), "24,007 policies"),
    (
        json.dumps(GOOD | {"policy": {"type": "LogLinear", "a": [[0.0]] * 2000, "b": [0.0] * 2000}}),
        "too large together",
    ),
    (json.dumps(GOOD | {"fitted_range": [1]}), "mapping"),
    (json.dumps(GOOD | {"model": 3}), "text"),
]


@pytest.mark.parametrize(("content", "message"), BAD)
def test_a_malformed_card_is_refused_in_one_line(content, message, tmp_path):
    path = tmp_path / "card.json"
    path.write_text(content)
    began = time.process_time()
    with pytest.raises(ValueError, match="not a usable policy card") as caught:
        load_policy(path)
    assert time.process_time() - began < 5
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_card_says_so(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_policy(tmp_path / "absent.json")


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "card.json").write_bytes(b"\x80\x04\x95pickle")
    with pytest.raises(ValueError, match="not a usable policy card"):
        load_policy(tmp_path / "card.json")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_a_regular_file_is_a_card(kind, tmp_path):
    path = {"device": "/dev/zero", "folder": tmp_path}.get(kind, tmp_path / "card.json")
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(ValueError, match=rf"{path} is not a usable policy card: it is a {kind}"):
        load_card(path)


def test_the_largest_card_is_built_and_evaluated_at_once(tmp_path):
    """The longest lists, and a tenth of the policies: time grows in proportion to their number."""
    polynomial, table = Polynomial((0.01,) * 16), Table(tuple(range(4096)), tuple(range(1, 4097)))
    PerLayer((PerHead((polynomial,) * 2000), table)).save(tmp_path / "card.json")
    began = time.process_time()
    policy = load_policy(tmp_path / "card.json")
    for layer in (0, 1):
        softmax(np.zeros((1, 2000, 1, 8)), policy.for_layer(layer))
    assert time.process_time() - began < 5


def test_a_policy_too_large_to_be_read_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="17 items, a card's at most 16"):
        Polynomial((0.01,) * 17).save(tmp_path / "card.json")
    assert not (tmp_path / "card.json").exists()


def test_a_card_holds_only_policies():
    with pytest.raises(TypeError, match="holds a sharpmax policy"):
        Card(policy="PAPER")


def nested(depth):
    return {} if depth == 0 else {"a": nested(depth - 1)}


@pytest.mark.parametrize(
    "details",
    [
        {"held_out": nested(100)}, {"held_out": {"a": [0] * 2_000_000}}, {"notes": "x" * 20_000_000},
        {"notes": "half a pair: \ud800"}, {"held_out": {"1": 1, 1: 2}}, {"held_out": {"a": float("nan")}},
        {"held_out": {"a": 10**5000}},
    ],
    ids=["deep", "long", "large", "surrogate", "twice", "nan", "digits"],
)  # fmt: skip
def test_a_card_that_could_not_be_read_is_not_written(tmp_path, details):
    file = tmp_path / "card.json"
    Card(Constant(2.0)).save(file)
    before = file.read_bytes()
    with pytest.raises(ValueError, match=r"card.json would be a card that nobody can read"):
        Card(Constant(2.0), **details).save(file)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (
            LogLinear(np.ones((9, 1)), np.ones((5, 1))),
            r"shapes \[\(9, 1\), \(5, 1\), \(\)\], which do not fit together",
        ),
        (LogLinear(np.ones((2000, 1)), np.ones((1, 2000))), "too large together"),
    ],
)
def test_a_policy_that_could_not_be_read_is_not_written(tmp_path, policy, said):
    with pytest.raises(ValueError, match=rf"card.json would be a card that nobody can read: LogLinear .*{said}"):
        policy.save(tmp_path / "card.json")
    assert not (tmp_path / "card.json").exists()


def test_a_policy_whose_name_means_another_class_by_now_is_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(Policy, "known", dict(Policy.known))

    def define(module):
        return type("Spread", (Policy,), {"__module__": module, "__call__": lambda self, stats, stats_at=None: 2.0})

    ours, theirs = (dataclass(frozen=True, eq=False)(define(module)) for module in ("ours", "theirs"))
    with pytest.raises(ValueError, match=r"Spread, and would be read as the class .* defined last, in theirs"):
        PerHead([ours()]).save(tmp_path / "card.json")
    theirs().save(tmp_path / "card.json")
    assert type(load_policy(tmp_path / "card.json")) is theirs
