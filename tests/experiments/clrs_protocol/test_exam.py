"""The exam: decoding says what one pass says, company changes nothing, and `Beyond` knows what was trained."""

import pytest
import torch

from sharpmax.core.policies import Beyond
from sharpmax.experiments.clrs_protocol import data, exam
from sharpmax.experiments.clrs_protocol.data import FreshSequences, questions
from sharpmax.experiments.clrs_protocol.exam import asked_with, examine
from sharpmax.experiments.clrs_protocol.study import ARMS, QUICK
from sharpmax.experiments.compare.train import Hardware, Recipe, train_seeds
from sharpmax.models.mechanisms import Sharpened
from sharpmax.tasks.clrs_text.tokens import decode

HARDWARE = Hardware()
MODEL = QUICK.transformer("plain")


@pytest.fixture(scope="module")
def params(tmp_path_factory):
    """Two seeds that have learned how an answer begins."""
    folder = tmp_path_factory.mktemp("training")
    return train_seeds(MODEL, FreshSequences(("quicksort",)), Recipe(16, 4, 3e-2), [0, 1], folder, hardware=HARDWARE)


def test_decoding_and_one_pass_agree(params):
    found = examine(MODEL, params, "quicksort", questions("quicksort", 2, (4, 5)), hardware=HARDWARE)
    for record in found:
        assert len(record["log_likelihood"]) == 2 * 5 * 2
        assert len(record["decoded"]) == 2 * 5
        for question, (letters, said) in record["decoded"].items():
            wrong = record["wrong"].get(question)
            exact = set(letters) == {"."} and said == len(letters)
            assert exact == (wrong is None)
            if wrong is not None:  # both go wrong at the same token
                assert letters.index(letters.lstrip(".")[0]) == wrong.index(wrong.lstrip(".")[0])
    # They have learned how an answer begins, so that the two could differ.
    assert any(letters[0] == "." for record in found for letters in record["wrong"].values())


def test_memory_and_company_change_nothing_but_rounding(params, monkeypatch):
    asked = questions("quicksort", 1, (4, 6, 11))
    whole = examine(MODEL, params, "quicksort", asked, hardware=HARDWARE)
    monkeypatch.setattr(exam, "ENTRIES", {False: 1, True: 1})  # one question at a time
    alone = examine(MODEL, params[1:], "quicksort", asked, hardware=HARDWARE)[0]
    torch.testing.assert_close(
        torch.tensor(alone["log_likelihood"]), torch.tensor(whole[1]["log_likelihood"]), rtol=1e-4, atol=1e-3
    )
    assert alone["wrong"].keys() == whole[1]["wrong"].keys()


def test_beyond_begins_where_training_ended():
    model = QUICK.transformer("beyond")
    policy = asked_with(model, "minimum").mechanism.policy
    assert isinstance(policy, Beyond)
    assert policy.trained == 31 + 6  # tokens of its longest training row
    assert asked_with(MODEL, "minimum") is MODEL
    assert ARMS["beyond"].mechanism == model.mechanism == Sharpened(model.mechanism.policy)


def test_training_data_are_fresh_of_the_step_alone_and_of_the_published_lengths(monkeypatch):
    monkeypatch.setattr(data, "DRAWN_AT_ONCE", 4)
    source, device = FreshSequences(("activity_selector", "bubble_sort", "minimum")), torch.device("cpu")
    shares = source.shares(46)
    assert shares == {"activity_selector": 20, "bubble_sort": 6, "minimum": 20}  # by their training lengths
    assert source.groups == {72: ["bubble_sort", "minimum"], 104: ["activity_selector"]}
    steps = dict(source.batches(Recipe(6, 46), [3, 7], device, 0))
    later = dict(source.batches(Recipe(6, 46), [7], device, 5))
    assert sorted(later) == [5]
    for whole, again in zip(steps[5], later[5], strict=True):
        assert all(torch.equal(a[1:], b) for a, b in zip(whole, again, strict=True))
    narrow, wide = steps[0]
    assert (narrow.tokens.shape, wide.tokens.shape) == ((2, 26, 72), (2, 20, 104))
    # Every example counts as one, whatever the number of its tokens.
    each = torch.cat([batch.weights.sum((-1, -2)) for batch in steps[0]], dim=1)
    torch.testing.assert_close(each, torch.full((2, 46), 1 / 46))
    texts = [decode(row.tolist()) for step in steps.values() for row in step[0].tokens.flatten(0, 1)]
    assert len(set(texts)) == len(texts)
    lengths = {text.split("\n")[1].count(" ") for text in texts if text.startswith("bubble")}
    assert lengths == {4, 5, 10}
