"""Batches: within budget, every example once a pass, decided by the seed; padding and packing change no answer."""

import numpy as np
import pytest
import torch

import sharpmax
from sharpmax.hf import sharpen
from sharpmax.hf.answer_batches import Encoded, all_once, collate, encode, plan_batches
from sharpmax.hf.answer_model import answer_logits, answering, generated, require_plain_logits, right_tokens
from sharpmax.hf.gemma import character_tokenizer, gemma

LENGTHS = np.random.default_rng(0).integers(5, 300, size=500).tolist()


def examples(count=12, seed=0):
    """Random questions of 3 to 60 tokens with answers of 1 to 9."""
    draws = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        question, answer = draws.integers(3, 60), draws.integers(1, 9)
        made.append(Encoded(draws.integers(2, 90, size=question + answer).astype(np.int32), int(question)))
    return made


@pytest.mark.parametrize("row", [None, 512])
def test_a_pass_holds_every_example_once_within_the_budget(row):
    batches = plan_batches(LENGTHS, steps=500, tokens=2048, seed=3, row=row)
    first_pass = []
    for rows in batches:
        widths = [sum(LENGTHS[i] for i in each) for each in rows]
        assert len(rows) * (-(-max(widths) // 64) * 64) <= 2048
        assert row is not None or all(len(each) == 1 for each in rows)
        first_pass += [i for each in rows for i in each]
        if len(first_pass) == len(LENGTHS):
            break
    assert sorted(first_pass) == list(range(len(LENGTHS)))


def test_the_seed_decides_the_order_and_more_steps_change_nothing_before_them():
    short, long, other = (plan_batches(LENGTHS, steps=n, tokens=2048, seed=s) for n, s in ((9, 3), (80, 3), (9, 4)))
    assert short == long[:9] != other
    assert len(long) == 80


def test_like_lengths_stand_together():
    whole = [rows for rows in plan_batches(LENGTHS, steps=40, tokens=2048, seed=0) if len(rows) > 1]
    spread = [max(LENGTHS[i] for (i,) in rows) - min(LENGTHS[i] for (i,) in rows) for rows in whole]
    assert np.mean(spread) < 60


def test_an_example_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="longest takes 320"):
        plan_batches(LENGTHS, steps=1, tokens=256, seed=0)


def test_judging_takes_every_example_once_however_long():
    assert sorted(i for rows in all_once(LENGTHS, tokens=128) for (i,) in rows) == list(range(500))


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


@pytest.mark.parametrize("policy", [None, sharpmax.PAPER], ids=["plain", "paper"])
@pytest.mark.parametrize("size", ["gemma-tiny", "gemma2-tiny"])
def test_padding_and_packing_change_no_answer(size, policy):
    """Every example alone, against all in padded rows, against all in two packed rows: float64, so only bugs differ."""
    model = gemma(size).model.double()
    with torch.no_grad():  # a random model attends evenly; sharper logits make every masking mistake show
        for name, weight in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                weight *= 20
    asked = examples()
    halves = [list(range(6)), list(range(6, 12))]
    switch = sharpen(model, policy or sharpmax.Constant(1.0))

    def logits(rows):
        batch = collate(asked, rows)
        batch.pop("targets")
        return answer_logits(model, **batch)

    with torch.no_grad(), switch:
        alone = torch.cat([logits([[i]]) for i in range(len(asked))])
        padded = logits([[i] for i in range(len(asked))])
        packed = logits(halves)
    assert (alone - padded).abs().max() < 1e-5  # the logits are rounded to float32 at the end
    assert (alone - packed).abs().max() < 1e-5
    assert "position_ids" in collate(asked, halves)


@pytest.mark.parametrize("size", ["gemma-tiny", "gemma2-tiny"])
def test_the_loss_is_that_of_the_whole_model_on_its_answers(size):
    model = gemma(size).model
    asked = examples()
    batch = collate(asked, [[i] for i in range(len(asked))])
    with torch.no_grad():
        whole = model(batch["input_ids"]).logits.flatten(0, 1)[batch["predicted_from"]].float()
        expected = torch.nn.functional.cross_entropy(whole, batch["targets"])
        with answering(model):
            loss = model(**batch)["loss"]
        assert "forward" not in model.__dict__
    torch.testing.assert_close(loss, expected)


def test_a_model_that_does_more_to_its_logits_is_refused():
    model = gemma("gemma-tiny").model
    require_plain_logits(model)
    model.config.final_logit_softcapping = 0.1  # which this version of Gemma does not apply, and we would
    with pytest.raises(NotImplementedError, match="GemmaForCausalLM does more"):
        require_plain_logits(model)


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
