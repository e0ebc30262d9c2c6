"""A card beside a model: it travels with the weights, and one of another model is warned of."""

import re

import pytest
import torch
from torch import nn

import sharpmax
from sharpmax.builtin import BUILTIN
from sharpmax.builtin.fetch import model_folder
from sharpmax.hf import OtherModelWarning, from_card, save_pretrained, sharpen
from sharpmax.hf.sharpen.sidecar import name_of
from tests.hf.families import build, output, tokens

SHARP = sharpmax.Constant(2.0)


def test_the_card_travels_beside_the_model(tmp_path):
    from transformers import LlamaForCausalLM

    model, ids = build("llama"), tokens()
    policy = sharpmax.PerLayer((SHARP, sharpmax.Constant(1.0)))
    save_pretrained(model, policy, tmp_path)
    again = LlamaForCausalLM.from_pretrained(tmp_path)
    with sharpen(model, policy), from_card(again, tmp_path), sharpen(again, tmp_path / "sharpmax.json"):
        assert torch.equal(output(again, input_ids=ids), output(model, input_ids=ids))


@pytest.mark.parametrize("switch_on", [sharpen, from_card])
def test_a_card_of_another_model_is_warned_of_and_used(switch_on, tmp_path):
    from transformers import LlamaForCausalLM

    nameless, folder = build("llama"), tmp_path / "tuned"
    save_pretrained(nameless, sharpmax.Card(SHARP, model="its-base"), folder)
    card = tmp_path / "card.json"
    card.write_bytes((folder / "sharpmax.json").read_bytes())
    for known, its_card in ((False, card), (True, folder)):  # nobody knows its name; or the card lies beside it
        model = LlamaForCausalLM.from_pretrained(folder) if known else nameless
        switch_on(model, its_card).restore()
    switch_on(nn.MultiheadAttention(16, 4), card).restore()
    said = re.escape(f"this card was fitted on its-base, and is used on {folder}")
    with pytest.warns(OtherModelWarning, match=f"^{said}$") as warned:
        sharpened = switch_on(model, card)
    assert warned[0].filename == __file__
    assert sharpened.policy == SHARP
    sharpened.restore()
    SHARP.save(card, model="elsewhere/tuned")
    switch_on(model, card).restore()


def test_models_in_folders_that_every_training_calls_alike_are_told_apart(tmp_path):
    """Fine-tuning writes `<run>/model`, and Trainer `<run>/checkpoint-<step>`: their last names say nothing."""
    model, card = build("llama"), tmp_path / "card.json"
    for fitted, used, other in (
        ("runs/a/model", "runs/b/model", True),
        ("a/checkpoint-5", "b/checkpoint-5", True),
        ("runs/a/model", "elsewhere/a/model", False),
        ("its/tuned", "elsewhere/tuned", False),
    ):
        model.name_or_path = used
        SHARP.save(card, model=fitted)
        for given in (card, sharpmax.load_card(card)):  # a card itself is warned of as its file is
            if other:
                with pytest.warns(OtherModelWarning, match=f"fitted on {fitted}, and is used on {used}") as warned:
                    sharpen(model, given).restore()
                assert [warning.filename for warning in warned] == [__file__]
            else:
                sharpen(model, given).restore()


def test_a_built_in_model_is_known_by_its_name_and_not_by_where_it_is_kept():
    model = build("llama")
    model.name_or_path = str(model_folder(BUILTIN["smollm2"]))
    assert name_of(model) == "smollm2"
    model.name_or_path = "google/gemma-2b"
    assert name_of(model) == "google/gemma-2b"
    assert name_of(nn.Linear(2, 2)) == ""


def test_what_is_no_card_is_refused_before_the_model_is_saved(tmp_path):
    with pytest.raises(TypeError, match=r'expected a card or a policy, got .*; load_card\("card.json"\)'):
        save_pretrained(build("llama"), "paper", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_what_is_no_model_of_transformers_is_not_saved(tmp_path):
    with pytest.raises(TypeError, match=r"expected a model of transformers, .*, got Linear"):
        save_pretrained(nn.Linear(2, 2), SHARP, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
