"""Which card a server is to use, and whether it may: one line for each that it may not. Needs no vLLM."""

import json
from dataclasses import replace

import pytest

import sharpmax
from sharpmax.builtin import BUILTIN
from sharpmax.builtin.fetch import model_folder
from sharpmax.core.cards import CARD_FILE, Card
from sharpmax.core.extension import DynamicNTK, SelfExtend, Unscaled, Yarn
from sharpmax.vllm.settings import TRIED, Served, card_path, policy_for

SERVED = Served(model="models/tiny", names=("tiny",), layers=2, heads=4, version=f"{TRIED[0]}.0")
PER_LAYER = sharpmax.PerLayer((sharpmax.LogLinear(c=((0.1,), (0.2,), (0.3,), (0.4,))), sharpmax.PAPER))


def asking(**settings):
    return {"sharpmax": settings}


@pytest.fixture
def card(tmp_path):
    Card(policy=PER_LAYER, model="tiny").save(tmp_path / "card.json")
    return tmp_path / "card.json"


@pytest.mark.parametrize("additional", [None, {}, {"other": 1}, {"sharpmax": {}}])
def test_without_a_card_there_is_nothing_to_do(additional, tmp_path):
    assert card_path(additional, str(tmp_path)) is None


def test_a_card_beside_the_weights_is_found_and_can_be_left_out(tmp_path):
    Card(policy=sharpmax.PAPER, model="whatever it was called").save(tmp_path / CARD_FILE)
    found = card_path({}, str(tmp_path))
    assert found == tmp_path / CARD_FILE
    assert policy_for(found, {}, replace(SERVED, model=str(tmp_path))) == sharpmax.PAPER
    assert card_path(asking(card=None), str(tmp_path)) is None


def test_a_card_is_named_by_its_file_or_its_folder(card):
    assert card_path(asking(card=str(card)), "models/tiny") == card
    assert card_path(asking(card=str(card.parent)), "models/tiny") == card.parent / CARD_FILE
    assert policy_for(card, asking(card=str(card)), SERVED) == PER_LAYER


def test_the_name_it_is_served_by_or_a_built_in_name_will_do(card):
    assert policy_for(card, {}, replace(SERVED, model="/somewhere/else")) == PER_LAYER
    Card(policy=sharpmax.PAPER, model="smollm2").save(card)
    folder = str(model_folder(BUILTIN["smollm2"]))
    assert policy_for(card, {}, replace(SERVED, model=folder, names=())) == sharpmax.PAPER


@pytest.mark.parametrize(
    ("additional", "words"),
    [
        (asking(card=3), "must be the path of a card"),
        (asking(card=""), "must be the path of a card"),
        (asking(cards="card.json"), "no other keys"),
        ({"sharpmax": "card.json"}, "no other keys"),
        (asking(any_model=True), "none is named"),
    ],
)
def test_settings_that_cannot_be_meant(additional, words):
    with pytest.raises(ValueError, match=words):
        card_path(additional, "models/tiny")


def refusal(path, additional=None, served=SERVED):
    with pytest.raises(ValueError, match=r"^sharpmax: ") as caught:
        policy_for(path, additional or {}, served)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_card_of_another_fine_tuned_model_is_refused(tmp_path):
    """Each lies in a folder called `model`."""
    Card(policy=PER_LAYER, model="runs/a/model").save(tmp_path / "card.json")
    of_b, of_a = (replace(SERVED, model=f"runs/{run}/model", names=()) for run in "ba")
    assert "was fitted on runs/a/model" in refusal(tmp_path / "card.json", served=of_b)
    assert policy_for(tmp_path / "card.json", {}, of_a) is not None


def test_a_card_of_another_model_is_refused_unless_it_is_meant(card):
    served = replace(SERVED, model="models/large", names=())
    assert "was fitted on tiny, and models/large is served" in refusal(card, served=served)
    assert policy_for(card, asking(card=str(card), any_model=True), served) == PER_LAYER


def test_a_card_whose_numbers_would_run_along_the_queries_is_refused(tmp_path):
    path = tmp_path / "card.json"
    sharpmax.Constant((1.0, 2.0, 3.0, 4.0)).save(path)
    said = refusal(path, {"sharpmax": {"card": str(path)}}, SERVED)
    assert said.endswith("one value per head is an array of shape (heads, 1), got (4,): its last axis is the queries'")


def test_a_card_of_other_layers_or_heads_is_refused_whatever_it_is_called(card):
    assert "holds 2 layers, and models/tiny has 3" in refusal(card, served=replace(SERVED, layers=3))
    meant = asking(card=str(card), any_model=True)
    assert "4 heads in layer 0, and models/tiny has 8" in refusal(card, meant, replace(SERVED, heads=8))
    assert "do not attend" in refusal(card, served=replace(SERVED, all_layers_attend=False))


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot read the card"), ("not JSON", "not a usable policy card"), ("{}", "sharpmax_card")],
    ids=["missing", "not JSON", "no card"],
)
def test_a_card_that_cannot_be_read_is_refused(content, words, tmp_path):
    if content is not None:
        (tmp_path / "card.json").write_text(content)
    assert words in refusal(tmp_path / "card.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"has_mla": True}, "MLA"),
        ({"generates": False}, "an encoder"),
        ({"is_encoder_decoder": True}, "an encoder"),
        ({"cache": "fp8"}, "--kv-cache-dtype fp8"),
        ({"cache": "float16", "dtype": "bfloat16"}, "the model's bfloat16 (--kv-cache-dtype float16)"),
        ({"speculates": True}, "speculative decoding"),
        ({"splits_context": True}, "split over processes"),
    ],
)
def test_what_is_not_served_is_refused_by_name(card, change, words):
    assert words in refusal(card, served=replace(SERVED, **change))


def test_a_version_that_was_not_tried_is_refused_unless_it_is_meant(card):
    later = replace(SERVED, version="9.9.1")
    assert f"tried with vLLM {TRIED[0]}, and this is 9.9.1" in refusal(card, served=later)
    assert policy_for(card, asking(card=str(card), any_version=True), later) == PER_LAYER


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}


@pytest.fixture
def extended(tmp_path):
    def write(extension):
        Card(policy=PER_LAYER, model="tiny", extension=extension).save(tmp_path / "card.json")
        return tmp_path / "card.json"

    return write


def test_a_card_that_extends_is_served_where_the_server_scales_alike(extended):
    assert policy_for(extended(Yarn(4.0, 64)), {}, replace(SERVED, rope=YARN)) == PER_LAYER
    assert policy_for(extended(Unscaled(4.0, 64)), {}, SERVED) == PER_LAYER


@pytest.mark.parametrize(
    "rope",
    [
        {},
        {"rope_type": "default", "rope_theta": 10000.0},
        {**YARN, "factor": 2.0},
        {**YARN, "original_max_position_embeddings": 32},
        {**YARN, "attention_factor": 1.0},
        {**YARN, "attention_factor": 0.0},
        {**YARN, "beta_fast": 16},
        {**YARN, "rope_type": "linear"},
    ],
)
def test_a_scaling_that_the_server_does_not_apply_is_never_served_in_silence(extended, rope):
    with pytest.raises(ValueError, match="reads 256 tokens by YaRN") as refused:
        policy_for(extended(Yarn(4.0, 64)), {}, replace(SERVED, rope=rope))
    typed = str(refused.value).split("--hf-overrides '")[1].split("'")[0]
    corrected = {**json.loads(typed)["rope_parameters"]}
    assert policy_for(extended(Yarn(4.0, 64)), {}, replace(SERVED, rope=corrected)) == PER_LAYER
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("extension", [DynamicNTK(4.0, 64), SelfExtend(4.0, 64)])
def test_an_extension_that_turns_keys_late_is_refused_by_name(extended, extension):
    with pytest.raises(ValueError, match=f"extends the context by {type(extension).__name__}.*vLLM caches them turned"):
        policy_for(extended(extension), {}, replace(SERVED, rope=YARN))


@pytest.mark.parametrize("name", ["any_model", "any_version"])
@pytest.mark.parametrize("value", ["false", "no", 1, ["0.31"], None])
def test_what_is_neither_true_nor_false_says_nothing(tmp_path, name, value):
    with pytest.raises(ValueError, match=f'"{name}" must be true or false'):
        card_path({"sharpmax": {"card": str(tmp_path / "card.json"), name: value}}, "model")
