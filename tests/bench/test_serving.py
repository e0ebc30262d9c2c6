"""The benchmark of serving: it checks both parts, then times them."""

import pytest

from sharpmax.bench import serving


def test_decode_is_checked_and_timed_beside_plain_attention():
    figures = serving.measure(only=["decode"], repeats=1, device="cpu")
    rows = {row["case"]: row for row in figures["results"]}
    assert {"paged, paper", "unpaged, paper", "paged, card", "paged, constant"} < rows.keys()
    assert all(row["ratio"] > 0 for row in rows.values())
    assert serving.show(figures).row_count == len(rows)


@pytest.mark.slow
def test_continuous_batching_is_timed_plain_and_sharpened():
    figures = serving.measure(only=["batching"], requests=3, new_tokens=3, repeats=1, device="cpu")
    shares = {row["case"].partition(",")[0]: row["share_of_plain"] for row in figures["results"]}
    assert shares.keys() == {"plain", "constant", "paper", "card"}
    assert shares["plain"] == 1
    assert all(share > 0 for share in shares.values())


@pytest.mark.parametrize("options", [{"only": ["other"]}, {"repeats": 0}, {"device": "nowhere"}])
def test_what_cannot_be_measured_is_refused(options):
    with pytest.raises(ValueError, match=r"only may name|at least 1|nowhere"):
        serving.measure(**options)


def test_a_wrong_result_is_not_timed(monkeypatch):
    monkeypatch.setattr(serving, "paged_attention", lambda query, *_, **__: query * 0 + 7)
    with pytest.raises(ArithmeticError, match="differs from"):
        serving.measure(only=["decode"], device="cpu")
