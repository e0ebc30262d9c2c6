"""The benchmark of serving: it checks each contestant, then times it, and goes on where one fails."""

from importlib import import_module

import pytest

from sharpmax.bench import serving
from sharpmax.hf.models import batching
from sharpmax.runs.progress import shown


def by_case(figures):
    return {row["case"].partition(", ")[0] if row["part"] == "batching" else row["case"]: row
            for row in figures["results"]}  # fmt: skip


def test_decode_is_checked_and_timed_beside_plain_and_unpaged_attention(capsys):
    with shown():
        figures = serving.measure(only=["decode"], repeats=1, device="cpu")
    rows = by_case(figures)
    assert {"paged, paper", "unpaged, paper", "paged, card", "paged, constant"} < rows.keys()
    assert all(row["ratio"] > 0 for row in rows.values())
    of_unpaged = rows["paged, card"]["ratio"] / rows["unpaged, card"]["ratio"]
    assert rows["paged, card"]["of_unpaged"] == pytest.approx(of_unpaged)
    assert serving.show(figures).row_count == len(rows)
    assert serving.wrong(figures) == []
    assert "decode, paged, card: " in capsys.readouterr().err


def test_continuous_batching_is_timed_plain_and_sharpened(capsys):
    with shown():
        figures = serving.measure(only=["batching"], requests=3, new_tokens=3, repeats=1, device="cpu")
    rows = by_case(figures)
    assert rows.keys() == {"plain", "constant", "paper", "card"}
    assert rows["plain"]["share_of_plain"] == 1
    assert all(row["share_of_plain"] > 0 and row["regret"] < 0.01 for row in rows.values())
    assert serving.wrong(figures) == []
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("batching")]
    assert len(said) == len(rows)


def test_a_wrong_result_is_told_and_not_timed_and_the_others_are(monkeypatch):
    monkeypatch.setattr(serving, "paged_attention", lambda query, *_, **__: query * 0 + 7)
    figures = serving.measure(only=["decode"], device="cpu", repeats=1)
    rows = by_case(figures)
    assert "differs from" in rows["paged, card"]["failed"]
    assert "milliseconds" not in rows["paged, card"]
    assert "milliseconds" in rows["unpaged, card"]
    assert len(serving.wrong(figures)) == 3
    assert serving.show(figures).row_count == len(rows)


def test_answers_that_are_not_the_models_own_are_told(monkeypatch):
    real = serving.answered

    def other(model, rounds, **options):
        return real(model, [[list(reversed(prompt)) for prompt in prompts] for prompts in rounds], **options)

    monkeypatch.setattr(serving, "answered", other)
    figures = serving.measure(only=["batching"], requests=3, new_tokens=3, repeats=1, device="cpu")
    assert all("not the model's own" in row["failed"] for row in figures["results"])
    assert len(serving.wrong(figures)) == 3  # plain is nobody's of ours


def test_a_request_that_fails_is_told_with_its_reason(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no attention today")

    monkeypatch.setattr(import_module("sharpmax.hf.sharpen.site"), "paged_attention", broken)
    figures = serving.measure(only=["batching"], requests=2, new_tokens=2, repeats=1, device="cpu")
    rows = by_case(figures)
    assert "tokens_per_second" in rows["plain"]
    assert "no attention today" in rows["card"]["failed"]


def test_no_round_is_begun_after_the_seconds_are_over():
    model = serving.random_model("tiny", context=64, dtype=serving.torch.float32, device="cpu")
    found = batching.answered(model, [[[5, 6, 7]], [[8, 9]], [[3]]], new_tokens=2, seconds=0)
    assert len(found) == 1
    assert len(found[0].answers[0]) == 2
