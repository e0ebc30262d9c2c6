"""The laws experiment: what it draws is right, its record keeps what it must, and a small run writes its page."""

import json

import numpy as np
import pytest
import torch

from sharpmax.core.laws import Bounded, Gaussian, expect
from sharpmax.dispersion import measure
from sharpmax.dispersion.forecast import Rehearsal, rehearse
from sharpmax.experiments import laws, reproduce
from sharpmax.experiments.laws import depth, heads, monte_carlo, policies, small, table_heads, trained_heads
from sharpmax.experiments.laws.ceiling import ceiling
from sharpmax.runs.committed import committed_metrics
from tests.hf.tiny import tiny
from tests.models.tables.small_model import small_model

RECORD = committed_metrics("laws", "full-seed0")


@pytest.mark.parametrize("law", [Gaussian(1.0), Bounded(2.0, 10.0)], ids=str)
def test_the_top_of_a_large_row_is_drawn_as_the_whole_row_would_be(law):
    n = 3 * monte_carlo.TOP
    beta = 2 * law.critical_beta(n)
    found = monte_carlo.measured(law, n, beta, rows=400, seed=0)
    said = expect(law, n, beta)
    for name in ("entropy", "largest_weight", "participation"):
        mean, error = found[name]
        assert abs(getattr(said, name) - mean) <= 4 * error, name


def test_a_disagreement_is_counted_beyond_the_error_of_the_drawing():
    case = {"law": "x", "drawn": {"entropy": [1.0, 0.1], "largest_weight": [0.5, 0.01]}, "formula": None}
    case["quadrature"] = {"entropy": 1.5, "largest_weight": 0.5}
    assert monte_carlo.worst([case]) == {"x": {"quadrature": {"cases": 1, "entropy": pytest.approx(0.3), "weight": 0}}}


def test_ssmax_holds_a_needle_and_loses_a_crowd_that_a_target_holds():
    n = policies.SIZES[-1]
    needle, crowd = (policies.judged(law, n, rows=12, seed=0) for law in ("needle", "bounded, a = 1"))
    assert needle["SSMax"]["largest_weight"] > 0.8
    assert crowd["SSMax"]["largest_weight"] < 0.2
    assert needle["softmax"]["largest_weight"] < 0.2
    assert min(row["EntropyTarget"]["largest_weight"] for row in (needle, crowd)) > 0.7
    assert crowd["LogLinear, β ∝ n"]["largest_weight"] > 0.7


@pytest.mark.parametrize("name", ["bounded, a = 1", "needle"])
def test_every_law_starts_at_the_same_sharpness(name):
    law = policies.SHAPES[name]
    said = expect(law, policies.START, policies.scale_of(law))
    assert said.largest_weight == pytest.approx(policies.WEIGHT, abs=1e-3)


def test_a_bounded_law_is_found_again_from_its_entropies():
    law, sizes = Bounded(1.2, 150.0), (16, 64, 256)
    found = trained_heads.fit_bounded(sizes, np.array([expect(law, n).entropy for n in sizes]))
    assert (found.shape, found.spread) == (pytest.approx(1.2, rel=1e-3), pytest.approx(150.0, rel=1e-2))


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_windows_of_a_model_are_measured_and_judged(monkeypatch, family):
    monkeypatch.setattr(heads, "load", lambda *_, **__: tiny(family))
    monkeypatch.setattr(heads, "_body", lambda _: "".join(f"line {i * i}: it is {i % 7}\n" for i in range(400)))
    setting = heads.Setting("minilm", "source", (8, 16, 24), 192, windows=3, targets=2, rows=4, between=(48,))
    read = []
    found = heads.measure(setting, seed=0, advance=lambda tokens: read.append(tokens))
    assert list(found.lengths) == [8, 16, 24, 48, 192]
    assert sum(read) > 0
    record = json.loads(json.dumps(heads.judged(setting, found, seed=0)))
    assert record["target"] == 192
    assert record["fitted_up_to"] == 24
    assert set(record["mean_absolute_error"]) == {"law", "persistence", "line", "crowd"}
    ahead = np.nanmean(found.observed[192].keys_ahead)
    assert (ahead > 0.3) == (family == "bert")


def test_the_same_windows_are_read_every_time(monkeypatch):
    monkeypatch.setattr(heads, "load", lambda *_, **__: tiny("llama"))
    monkeypatch.setattr(heads, "_body", lambda _: "a word and another\n" * 300)
    setting = heads.Setting("smollm2", "source", (8, 16), 128, windows=2, targets=1, rows=2)
    first, again = (heads.measure(setting, seed=3, advance=lambda _: None).entropy for _ in range(2))
    np.testing.assert_array_equal(first, again)


def test_tables_are_read_at_every_length_by_rows_that_see_none_ahead(monkeypatch):
    monkeypatch.setattr(table_heads.tabpfn, "load", lambda: small_model(features=8))
    monkeypatch.setattr(table_heads, "FAMILIES", ("clusters", "waves"))
    setting = heads.Setting("tabpfn", "tables", (16, 24), 192, windows=2, targets=1, rows=3)
    read = []
    found = table_heads.measure(setting, seed=0, advance=read.append)
    assert (list(found.lengths), found.rows) == ([16, 24, 192], [6, 6, 3])
    assert sum(read) == 2 * (16 + 24) + 192
    assert np.all(found.entropy <= np.log(found.lengths) + 1e-5)
    assert np.nanmax(found.observed[192].keys_ahead) < 0.1
    assert heads.judged(setting, found, seed=0)["target"] == 192


@pytest.mark.parametrize("told", [True, False])
def test_the_ceiling_is_high_where_short_inputs_tell_and_low_where_they_do_not(told):
    """Heads lead by 1 to 5 over a crowd. Untold, the longest input has another head in each one's place."""
    leads = np.linspace(1.0, 5.0, 60)
    shuffled = np.random.default_rng(1).permutation(leads)

    def logits(n):
        rows = np.random.default_rng(n).normal(0, 0.5, (60, 12, n))
        rows[..., 0] = (leads if told or n < 512 else shuffled)[:, None]
        return rows

    found = measure(logits, [16, 32, 64, 512])
    said = ceiling(found, rehearse(found), seed=0)
    assert (said["error"] < 0.15) == told
    assert (said["rate_agreement"] > 0.9) == told


def test_one_token_moves_what_comes_after_it_less_in_a_longer_text(monkeypatch):
    monkeypatch.setattr(depth, "load", lambda *_, **__: tiny("llama"))
    monkeypatch.setattr(heads, "_body", lambda _: "".join(f"{i * i % 97} and {i}\n" for i in range(500)))
    setting = heads.Setting("smollm2", "source", (8, 16), 128)
    moved = depth.influence(setting, (16, 128), 4, seed=0, advance=lambda _: None)
    assert np.all(moved[0] == 0), "the last row's own embedding is not touched"
    assert np.all(moved[1:] > 0)
    slopes = depth.slopes((16, 128), moved)
    assert slopes[0] is None
    assert all(slope < -0.5 for slope in slopes[1:]), "a random model averages: -1, about"


def test_logits_of_a_layer_are_those_that_it_attends_by():
    params = small.MODEL.init([0, 1])
    batch = small.Largest().draw(3, (9, 9), generator=torch.Generator().manual_seed(0))
    seen = {}
    tokens = batch.tokens[:, :10].expand(2, 3, 10)
    small.MODEL(small.MODEL.named(params), tokens, observer=seen.__setitem__)
    _, logits, _ = small._read(params, batch.tokens[:, :10])
    for layer in range(small.MODEL.layers):
        entropy = torch.special.entr(logits[layer].softmax(-1)).sum(-1)
        torch.testing.assert_close(entropy, seen[layer][..., -1], atol=1e-5, rtol=1e-5)


def test_the_largest_token_is_asked_for():
    batch = small.Largest().draw(50, (4, 20), generator=torch.Generator().manual_seed(0))
    for tokens, at in zip(batch.tokens, batch.at, strict=True):
        size = int(at)
        assert tokens[size] == small.SYMBOLS
        assert tokens[size + 1] == tokens[:size].max()


def test_small_transformers_are_trained_and_measured(tmp_path):
    found = laws.run(tmp_path, quick=True, only=["small"])["small"]
    assert np.shape(found["influence"]) == (len(small.SEEDS), small.MODEL.layers, len(found["lengths"]))
    assert np.all(np.array(found["influence"]) > 0)
    assert (tmp_path / "laws" / "quick-seed0" / "figures" / "depth-small.svg").exists()


def test_another_seed_trains_and_reads_others(tmp_path):
    first, other = (small.trained(tmp_path / str(seed), steps=1, seed=seed) for seed in (0, 2))
    assert torch.equal(first[2], other[0])  # seed 2
    assert not torch.equal(first[0], other[0])
    read = [small.measured(first, (16, 32), 2, seed=seed, advance=lambda by: None) for seed in (0, 2)]
    assert read[0]["influence"] != read[1]["influence"]


def test_a_small_run_writes_its_page(tmp_path, monkeypatch):
    monkeypatch.setattr(monte_carlo, "LAWS", {"Gaussian": Gaussian(1.0)})
    monkeypatch.setattr(monte_carlo, "SIZES", (100,))
    metrics = laws.run(tmp_path, quick=True, only=["checks"])
    assert metrics["checks"]["worst"]["Gaussian"]["quadrature"]["cases"] == len(monte_carlo.TIMES)
    folder = tmp_path / "laws" / "quick-seed0"
    assert (folder / "page.json").exists()
    assert (folder / "figures" / "critical.svg").exists()
    monkeypatch.setattr(laws, "_policies", lambda *_: {})
    told = laws.run(tmp_path, quick=True, only=["policies"])  # another part: the page keeps the first
    assert told["checks"] == metrics["checks"]


@pytest.mark.parametrize("options", [{"settings": ["minilm-poems"]}, {"only": ["poems"]}])
def test_what_there_is_not_is_refused_before_any_work(tmp_path, options):
    with pytest.raises(ValueError, match="poems"):
        reproduce("laws", out=tmp_path, **options)
    assert not (tmp_path / "laws").exists()


@pytest.mark.parametrize("law", monte_carlo.LAWS)
def test_the_record_agrees_with_drawn_rows_from_a_hundred_items_to_ten_million(law):
    cases = [case for case in RECORD["checks"]["cases"] if case["law"] == law]
    assert {case["n"] for case in cases} == set(monte_carlo.SIZES)
    for way, entry in RECORD["checks"]["worst"][law].items():
        assert entry["entropy"] <= 0.05, way
        assert entry["weight"] <= 0.05, way
        assert entry["cases"] > 0


def test_the_record_of_max_retrieval_is_within_a_tenth_of_a_nat():
    assert len(RECORD["trained"]["heads"]) == 10
    assert RECORD["trained"]["largest_entropy_error"] <= 0.1


@pytest.mark.parametrize("name", RECORD["heads"]["settings"])
def test_each_verdict_follows_from_the_recorded_forecasts_by_the_rule_of_the_product(name):
    record = RECORD["heads"]["settings"][name]
    found = np.array(record["entropy"], dtype=float)[..., -1]
    said = {method: np.array(values, dtype=float) for method, values in record["forecast"].items()}
    made = Rehearsal(record["fitted_up_to"], record["target"], said, said, found, found)
    again = made.to_json()
    for part in ("mean_absolute_error", "rate_agreement", "p"):
        assert again[part] == pytest.approx(record[part], rel=1e-3, abs=1e-5), part
    assert made.believed == heads.holds(record) == RECORD["heads"]["holds"][name]


def test_the_record_has_every_setting():
    assert set(RECORD["heads"]["settings"]) == set(RECORD["heads"]["holds"]) == {one.name for one in heads.SETTINGS}


def test_the_record_of_small_transformers_has_the_theorem_s_rate():
    found = committed_metrics("laws", "small-seed0")["small"]
    assert np.shape(found["slopes"]) == (len(small.SEEDS), small.MODEL.layers)
    assert -1.2 < np.min(found["slopes"]) <= np.max(found["slopes"]) < -0.8
    spread = np.mean(found["spread"], axis=0)
    assert np.all(spread[:, -1] < 1.2 * spread[:, 0]), "a finite set of tokens bounds the spread at any length"


@pytest.mark.slow
@pytest.mark.parametrize("law", monte_carlo.LAWS)
@pytest.mark.parametrize("n", monte_carlo.SIZES)
def test_each_law_agrees_with_drawn_rows(law, n):
    rows = 6000 if "heavier" in law else 1500  # few rows of a heavy tail understate their own error
    cases = [monte_carlo.checked(law, n, times, rows=rows, seed=n + 1) for times in monte_carlo.TIMES]
    for entry in monte_carlo.worst(cases)[law].values():
        assert entry["entropy"] <= 0.05
        assert entry["weight"] <= 0.05
