"""A real server, over HTTP: with `Constant(1)` the stock engine's text, with a card the accuracy that it was judged by.

Run by `make test-vllm`, in an environment of its own.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sharpmax
from sharpmax.core.cards import CARD_FILE, load_card
from tests.places import RESULTS
from tests.vllm import servers

pytestmark = pytest.mark.vllm
CARD = RESULTS / "calibration" / "smollm2" / "card.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("serving")


@pytest.fixture(scope="module")
def loaded():
    from sharpmax.hf.models.load import load

    return load("smollm2")


@pytest.fixture(scope="module")
def model(loaded):
    """The folder of SmolLM2 as vLLM reads it."""
    return loaded.model.name_or_path


@pytest.fixture(scope="module")
def lookups():
    from sharpmax.hf.calibration.splits import questions

    sizes = (24, 32, 48, 64)
    return [question for size in sizes for question in questions("lookup", size, 5, seed=0, split="report")]


@pytest.fixture(scope="module")
def mixed(lookups):
    """Twenty prompts of a word to 700 tokens."""
    text = "Once upon a time there was a small model that read every word it was given"
    return [text[: 5 + 7 * i] for i in range(10)] + [prompt for prompt, _ in lookups[::2]]


@pytest.fixture(scope="module")
def carded(model, folder):
    """A server that finds the card beside the weights by itself."""
    own = folder / "smollm2"
    own.mkdir()
    for file in Path(model).iterdir():
        (own / file.name).symlink_to(file)
    (own / CARD_FILE).write_text(CARD.read_text())
    with servers.serving(own, folder / "carded.log") as url:
        yield url


def test_constant_one_writes_what_the_stock_engine_writes(model, folder, mixed):
    with servers.serving(model, folder / "stock.log", VLLM_PLUGINS="") as url:
        stock = servers.complete_all(url, mixed)
    sharpmax.Constant(1.0).save(folder / "one.json")
    with servers.serving(model, folder / "one.log", folder / "one.json") as url:
        ours = servers.complete_all(url, mixed)
        again = servers.complete_all(url, mixed)  # now from the prefix cache
        assert servers.metric(url, "vllm:prefix_cache_hits_total") > 0
    assert ours == stock
    assert again == stock
    said = (folder / "one.log").read_text()
    assert "sharpmax: attention is served with a card" in said
    assert "Chunked prefill is enabled with max_num_batched_tokens=256" in said


def test_a_card_has_the_accuracy_that_evaluate_gives_it(carded, loaded, lookups):
    from sharpmax.hf import sharpen
    from sharpmax.hf.calibration.answers import answer

    with sharpen(loaded.model, load_card(CARD).policy):
        expected = [one.exact for one in answer(loaded, lookups)]
    said = servers.complete_all(carded, [prompt for prompt, _ in lookups], tokens=8)
    right = [text.startswith(wanted) for text, (_, wanted) in zip(said, lookups, strict=True)]
    assert sum(expected) >= 15, "the card does not do what it did"
    assert right == expected


def test_serve_check_says_that_the_card_acts(carded):
    from sharpmax.commands.serve_check import serve_check

    found = serve_check(carded, card=CARD, sizes=(24,), prompts=6)
    assert found["verdict"] == "acts"
    assert found["carded"]["accuracy"] >= 0.5
    assert found["carded"]["tokens_per_second"] > 0


def test_a_card_that_cannot_be_served_keeps_the_server_from_starting(model, folder):
    other, text = folder / "other.json", folder / "text.json"
    other.write_text(CARD.read_text().replace('"model": "smollm2"', '"model": "another-model"'))
    text.write_text("this is no JSON")
    expected = {
        other: "was fitted on another-model",
        folder / "missing.json": "cannot read the card",
        text: "not a usable policy card",
    }
    with ThreadPoolExecutor(len(expected)) as pool:
        ended = list(pool.map(lambda card: servers.start_and_fail(model, card), expected))
    for (status, said), words in zip(ended, expected.values(), strict=True):
        assert status != 0
        lines = [line for line in said.splitlines() if "sharpmax:" in line and words in line]
        assert lines, said[-2000:]
