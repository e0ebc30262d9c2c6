"""The paper's claims beside a run: every sentence that the page can say, and that no interval says more."""

import numpy as np
import pytest

from sharpmax.experiments.clrs_text.claims import EXCEPTIONS, claims
from sharpmax.experiments.clrs_text.page import _beside_the_paper, _claim
from sharpmax.experiments.clrs_text.summary import Records, summarise

ALGORITHMS = ("bfs", "dfs", "minimum", "quicksort", *EXCEPTIONS)
LENGTHS = (8, 32)
QUESTIONS = 20


def study(*, plain=0.5, paper=0.5, at_inference=0.5, trained=None, of=None):
    """Metrics of a run whose arms answer these shares of every algorithm's questions; `of` says the paper arm's."""
    asked = [(name, length) for name in ALGORITHMS for length in LENGTHS for _ in range(QUESTIONS)]
    number = np.arange(len(asked)) % QUESTIONS

    def right(share, beyond=None):
        shares = [
            share if beyond is None or length == 8 else beyond.get(name, beyond["rest"]) for name, length in asked
        ]
        return (number < np.round(QUESTIONS * np.array(shares))).astype(int).tolist()

    of_paper = {"rest": paper, **(of or {})}
    records = []
    for seed in range(2):
        inferred = right(plain, {"rest": at_inference})
        records.append(
            {"arm": "plain", "seed": seed, "right": {"as trained": right(plain), "paper at inference": inferred}}
        )
        records.append(
            {
                "arm": "paper",
                "seed": seed,
                "right": {"as trained": right(plain if trained is None else trained, of_paper)},
            }
        )
    test = {"algorithm": [a for a, _ in asked], "length": [n for _, n in asked], "tokens": [1] * len(asked)}
    summary = summarise(Records(test, records), algorithms=ALGORITHMS, trained=[8], beyond=[32])
    return {"algorithms": ALGORITHMS, "seeds": 2, "trained": [8], "beyond": [32], **summary}


def seen(**shares):
    return [claim.seen for claim in claims(study(**shares))]


def test_a_run_that_shows_what_the_paper_says():
    of = dict.fromkeys(EXCEPTIONS, 0.1)
    assert seen(plain=0.5, paper=0.9, at_inference=0.2, of=of) == [
        "seen",
        "undecided",  # three behind and four ahead are, over all questions, neither
        "on heapsort, mst_kruskal and bubble_sort: behind",
        "seen",
    ]
    of = dict.fromkeys(EXCEPTIONS, 0.5)
    assert seen(plain=0.5, paper=0.9, at_inference=0.2, of=of) == ["seen", "seen", "undecided", "seen"]
    assert seen(plain=0.5, paper=0.9, at_inference=0.2)[:2] == ["seen", "seen"]


def test_a_run_that_shows_the_opposite():
    assert seen(plain=0.5, paper=0.2, at_inference=0.9) == [
        "the opposite, on average",
        "the opposite",
        "on heapsort, mst_kruskal and bubble_sort: behind",
        "the opposite",
    ]


def test_a_run_that_shows_nothing_says_so():
    assert seen(plain=0.5, paper=0.5, at_inference=0.5) == ["not seen", "undecided", "undecided", "undecided"]


def test_ahead_on_average_is_not_ahead_on_nearly_all():
    found = claims(study(paper=0.5, of={"bfs": 1.0, "dfs": 1.0}))[0]
    assert found.seen == "on average, not on nearly all"
    assert "ahead on 2 of 7 algorithms, behind on 0, undecided on 5" in found.here
    assert "without the paper's exceptions ahead on 2 of 4" in found.here


def test_an_exception_that_is_ahead_is_none():
    assert seen(paper=0.9, of={"heapsort": 0.1})[2] == "not on mst_kruskal and bubble_sort: ahead"


def test_at_inference_only_is_judged_where_the_model_can_answer():
    """As in the committed run: nothing to lose beyond the trained lengths, much at them."""
    metrics = study(plain=0.5, at_inference=0.5)
    metrics["difference"]["plain+paper"]["trained"]["all"] = {"mean": -0.2, "low": -0.3, "high": -0.1, "student": None}
    assert claims(metrics)[3].seen == "seen"
    metrics["difference"]["plain+paper"]["beyond"]["all"] = {"mean": 0.2, "low": 0.1, "high": 0.3, "student": None}
    assert claims(metrics)[3].seen == "undecided"


def test_a_lead_as_large_at_the_trained_lengths_is_not_largest_beyond():
    assert seen(paper=0.9, trained=0.9)[1] == "undecided"


def test_a_model_that_has_not_learned_says_nothing():
    metrics = study(plain=0.1, paper=0.9, at_inference=0.0, of={"heapsort": 0.0})
    assert {claim.seen for claim in claims(metrics)} == {"cannot be told"}
    assert "neither confirms nor refutes" in _claim(metrics).text
    assert "neither confirms nor refutes" not in _claim(study(plain=0.5)).text


def test_where_neither_arm_answers_the_page_says_so():
    here = claims(study(plain=0.0, paper=0.9, of={"heapsort": 0.0}))[2].here
    assert "heapsort +0.0 [+0.0, +0.0] (neither gives one exact answer)" in here
    assert here.count("neither") == 1


def test_arms_and_algorithms_that_were_not_run_are_not_claimed():
    metrics = study()
    del metrics["difference"]["paper"]
    assert [claim.paper for claim in claims(metrics)] == ["used at inference only, it does not work well"]
    few = study()
    for name in EXCEPTIONS:
        few["difference"]["paper"]["beyond"][name] = None
    assert claims(few)[2].seen == "not asked"


@pytest.mark.parametrize(("seeds", "words"), [(1, "one seed says nothing"), (2, "resampling 2 seeds"), (5, "5 seeds")])
def test_the_page_names_how_many_seeds_there_were(seeds, words):
    metrics = {**study(), "seeds": seeds}
    assert words in _claim(metrics).text
    assert ("Student's interval over the seeds agrees" in _claim(metrics).text) == (seeds > 1)
    assert len(_beside_the_paper(metrics).rows) == 4
