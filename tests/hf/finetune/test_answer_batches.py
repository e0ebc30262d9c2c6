"""Rows and batches: every example once a pass, as the seed decides; neither padding nor packing changes an answer."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

import sharpmax
from sharpmax.hf import sharpen
from sharpmax.hf.finetune import packing
from sharpmax.hf.finetune.answer_batches import Encoded, all_once, encode, pack, pad, plan_rows
from sharpmax.hf.finetune.answer_model import (
    answer_logits,
    answering,
    generated,
    mean_loss,
    parting,
    right_tokens,
)
from sharpmax.hf.models.gemma import character_tokenizer, gemma

LENGTHS = np.random.default_rng(0).integers(5, 300, size=500).tolist()


def examples(count=12, seed=0):
    """Random questions of 3 to 60 tokens with answers of 1 to 9."""
    draws = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        question, answer = draws.integers(3, 60), draws.integers(1, 9)
        made.append(Encoded(draws.integers(2, 90, size=question + answer).astype(np.int32), int(question)))
    return made


def test_a_pass_holds_every_example_once_within_the_width():
    first_pass = []
    for row in plan_rows(LENGTHS, rows=500, width=2048, seed=3):
        assert 2048 - 300 < sum(LENGTHS[i] for i in row) <= 2048
        first_pass += row
    assert len(first_pass) > len(LENGTHS)
    assert sorted(first_pass[: len(LENGTHS)]) == list(range(len(LENGTHS)))


def test_the_seed_decides_the_order_and_more_rows_change_nothing_before_them():
    short, long, other = (plan_rows(LENGTHS, rows=n, width=2048, seed=s) for n, s in ((9, 3), (80, 3), (9, 4)))
    assert short == long[:9] != other
    assert len(long) == 80


def test_a_row_is_a_draw_over_all_lengths():
    rows = plan_rows(LENGTHS, rows=30, width=8192, seed=0)
    means = [np.mean([LENGTHS[i] for i in row]) for row in rows]
    assert np.std(means) < 1.5 * np.std(LENGTHS) / np.sqrt(len(rows[0]))  # as of independent draws; sorted ones: 4


def test_an_example_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="longest takes 299"):
        plan_rows(LENGTHS, rows=1, width=256, seed=0)


def test_judging_takes_every_example_once_however_long():
    assert sorted(i for batch in all_once(LENGTHS, tokens=128) for i in batch) == list(range(500))


def test_questions_and_answers_are_tokens_each_by_itself():
    tokenizer = character_tokenizer()
    (one,) = encode(tokenizer, [("minimum:\nkey: [0.1]\nmin:\n", "0\n\n")])
    assert tokenizer.decode(one.ids[: one.start]) == "minimum:\nkey: [0.1]\nmin:\n"
    assert tokenizer.decode(one.ids[one.start :]) == "0\n\n"
    assert tokenizer.unk_token_id not in one.ids


def test_a_marker_before_every_text_is_kept():
    tokenizer = character_tokenizer()
    tokenizer.bos_token = tokenizer.eos_token
    tokenizer._tokenizer.post_processor = __import__("tokenizers").processors.TemplateProcessing(
        single="<eos> $A", special_tokens=[("<eos>", tokenizer.eos_token_id)]
    )
    (one,) = encode(tokenizer, [("ab", "c")])
    assert one.ids[0] == tokenizer.bos_token_id
    assert (len(one.ids), one.start) == (4, 3)


def test_like_lengths_are_judged_together():
    batches = [batch for batch in all_once(LENGTHS, tokens=2048) if len(batch) > 1]
    assert max(len(batch) * max(LENGTHS[i] for i in batch) for batch in batches) <= 2048
    assert np.mean([max(LENGTHS[i] for i in b) - min(LENGTHS[i] for i in b) for b in batches]) < 60


SHARPER = 20
"""A random model attends evenly; logits so much sharper make every masking mistake show."""


def sharp_model(size):
    model = gemma(size).model.double()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                weight *= SHARPER
    return model


def loss_and_gradients(model, rows):
    model.zero_grad()
    loss = sum(model(**row)["loss"] for row in rows)
    loss.backward()
    return loss.detach(), {name: weight.grad.clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("policy", [None, sharpmax.PAPER], ids=["plain", "paper"])
@pytest.mark.parametrize("size", ["gemma-tiny", "gemma2-tiny"])
def test_packing_changes_no_loss_and_no_gradient(size, policy, monkeypatch):
    """Every example in a row alone, against all in one row and in three, by weights in float64, so only bugs differ.

    Examples up to 16, 48, 144 tokens have batches of their own, so that there are several, each with a row of padding.
    """
    monkeypatch.setattr(packing, "SHORT", 16)
    monkeypatch.setattr(packing, "coarse", lambda count: count + 1)
    model, asked = sharp_model(size), examples()
    before = model.config._attn_implementation
    width = sum(len(example.ids) for example in asked) + 37
    switch = sharpen(model, policy) if policy else nullcontext()
    with switch, answering(model):
        alone = [pack(asked, [i], width=len(asked[i].ids), of=len(asked)) for i in range(len(asked))]
        together = pack(asked, range(len(asked)), width=width, of=len(asked))
        thirds = [pack(asked, range(at, at + 4), width=256, of=len(asked)) for at in (0, 4, 8)]
        assert len(together["shapes"]) == 3
        expected, gradients = loss_and_gradients(model, alone)
        for rows in ([together], thirds):
            loss, found = loss_and_gradients(model, rows)
            assert (loss - expected).abs() < 1e-6  # logits are rounded to float32 at the end
            for name, gradient in found.items():
                assert (gradient - gradients[name]).abs().max() < 1e-6 * gradients[name].abs().max().clamp(min=1), name
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("size", ["gemma-tiny", "gemma2-tiny"])
def test_the_loss_is_that_of_the_whole_model_a_question_counting_as_one(size):
    """Of Gemma 2 with a window shorter than the examples, in every second layer."""
    model = sharp_model(size)
    if size == "gemma2-tiny":
        model.set_attn_implementation("eager")  # some versions take sdpa, which drops the softcap
        model.config.sliding_window = 8
        for layer in model.model.layers:
            layer.self_attn.sliding_window = layer.self_attn.sliding_window and 8
    asked = examples()

    def by_itself(example):
        logits = model(torch.from_numpy(example.ids[None].astype(np.int64))).logits[0, example.start - 1 : -1].float()
        return torch.nn.functional.cross_entropy(logits, torch.from_numpy(example.ids[example.start :]).long())

    with torch.no_grad():
        expected = torch.stack([by_itself(example) for example in asked]).mean()
        with answering(model):
            loss = model(**pack(asked, range(len(asked)), width=1024, of=len(asked)))["loss"]
        assert "forward" not in model.__dict__
    torch.testing.assert_close(loss.double(), expected.double(), rtol=1e-6, atol=0)
    assert mean_loss(model, asked, tokens=256) == pytest.approx(float(expected), rel=1e-5)


def test_half_precision_stops_at_the_logits():
    """The weights of a loss are small numbers, and so are the gradients that start from them."""
    model, asked = gemma("gemma-tiny").model, examples()
    with answering(model), torch.autocast("cpu", torch.bfloat16):
        loss = model(**pack(asked, range(len(asked)), width=1024, of=len(asked)))["loss"]
    assert loss.dtype == torch.float32
    assert loss.bfloat16() != loss


def test_padding_changes_no_answer():
    model, asked = sharp_model("gemma-tiny"), examples()

    def logits(chosen):
        batch = pad(asked, chosen)
        batch.pop("targets")
        return answer_logits(model, **batch)

    with torch.no_grad(), sharpen(model, sharpmax.PAPER):
        alone = torch.cat([logits([i]) for i in range(len(asked))])
        assert (alone - logits(range(len(asked)))).abs().max() < 1e-5  # the logits are rounded to float32 at the end


def test_attention_that_takes_masks_of_its_own_kind_is_refused():
    model = gemma("gemma-tiny").model
    model.config._attn_implementation_internal = "flex_attention"
    with pytest.raises(NotImplementedError, match="flex_attention"), answering(model):
        pass


def test_the_end_of_the_text_is_a_word_that_generation_may_say():
    """Both ways of asking: a model that would rather end than answer has not answered, and goes on being asked."""
    model, asked = gemma("gemma-tiny", seed=1).model, examples(8)
    end = model.config.eos_token_id
    with torch.no_grad():
        model.model.embed_tokens.weight[end] = 100 * model.model.embed_tokens.weight[50]  # often the likeliest
    said = [generated(model, example) for example in asked]
    assert any(end in answer for answer in said)
    for example, answer in zip(asked, said, strict=True):
        assert len(answer) == len(example.ids) - example.start
        example.ids[example.start :] = answer
    assert right_tokens(model, asked) == [len(answer) for answer in said]


def test_one_pass_says_what_real_generation_says():
    """A model of random weights answers questions whose right answer is made to be what it would say, or not quite."""
    model = gemma("gemma-tiny", seed=1).model
    with torch.no_grad():
        model.model.embed_tokens.weight *= 3
    asked = examples(30)
    with sharpen(model, sharpmax.PAPER):
        for i, example in enumerate(asked):
            said = generated(model, example)
            example.ids[example.start :] = said
            if i % 3 == 0:
                example.ids[-1] = (said[-1] + 1) % 90
        right = right_tokens(model, asked, tokens=256)
        for i, (count, example) in enumerate(zip(right, asked, strict=True)):
            exact = generated(model, example) == example.ids[example.start :].tolist()
            assert exact == (count == len(example.ids) - example.start) == (i % 3 != 0)


def test_how_near_a_tie_two_tokens_were():
    """The answer's second token said otherwise, and said as it is though the model would rather say another."""
    model, (example, *_) = gemma("gemma-tiny", seed=1).model, (e for e in examples(30) if len(e.ids) - e.start > 3)
    with torch.no_grad():
        logits = model(torch.from_numpy(example.ids[None].astype(np.int64))).logits[0, example.start - 1 : -1]
    answer = example.ids[example.start :].tolist()
    said = [answer[0], 7, *answer[2:]]
    found = parting(model, example, said)
    assert found == pytest.approx((1, float(logits[1, answer[1]] - logits[1, 7]), float(logits[1].max())), abs=1e-5)
    behind = logits.gather(1, torch.tensor(answer)[:, None])[:, 0] - logits.amax(1)
    found = parting(model, example, answer)
    assert found.token == int(behind.argmin())
    assert found.lead == pytest.approx(float(behind.min()), abs=1e-5)
    assert found.lead < 0


@pytest.mark.parametrize("pair", [("", "an answer"), ("a question", "")])
def test_an_example_without_a_question_or_an_answer_is_refused(pair):
    """The first token of the answer would be predicted from the example before it."""
    with pytest.raises(ValueError, match="expected a question and an answer of a token or more each, got "):
        encode(character_tokenizer(), [pair])
