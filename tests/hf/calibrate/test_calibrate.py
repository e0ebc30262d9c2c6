"""Calibration on a tiny model: gradients reach every head, and the choice is made apart from the report."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import ttest_rel

import sharpmax
from sharpmax.hf import sharpen
from sharpmax.hf.calibrate import choose as choosing
from sharpmax.hf.calibrate import judge as judging
from sharpmax.hf.calibrate.answers import Answered, answer, answer_losses
from sharpmax.hf.calibrate.choose import FINE, choose, kept, search
from sharpmax.hf.calibrate.descent import Recipe, text_cost
from sharpmax.hf.calibrate.descent_state import Price
from sharpmax.hf.calibrate.judge import Exam, Judgement, Sheet, Verdict, compare, must_take, sit, worst_perplexity_rise
from sharpmax.hf.calibrate.learn import learn, learn_side_by_side, query_heads
from sharpmax.hf.calibrate.match import match
from sharpmax.hf.calibrate.text_loss import token_losses
from tests.hf.tiny import Characters, tiny

QUESTIONS = [("abcabcab", "c"), ("xyxyxyx", "yx"), ("hello", " there")]
TEXT = "Attention that stays sharp at any size, whatever the length of the text it reads. " * 4


@pytest.fixture(scope="module")
def loaded():
    return tiny("llama", max_position_embeddings=512)


def exam(size=1, windows=(32,)):
    return Exam(
        {"letters": {size: QUESTIONS}}, {"text": torch.tensor([Characters()(TEXT).input_ids])}, windows, together=64
    )


def cost_of(loaded, ids, policy, truth=0.0):
    """Return what the policy costs on windows of ids, on the whole."""
    with torch.no_grad():
        plain = loaded.hidden(ids)
        with sharpen(loaded.model, policy):
            return float(text_cost(loaded, plain, loaded.hidden(ids), ids[None], [Recipe(truth=truth)], chunk=16)[0])


def test_an_answer_is_exact_if_greedy_decoding_gives_it(loaded):
    letters = {5 + ord(c) % 59: c for c in map(chr, range(97, 156))}
    options = {"max_new_tokens": 2, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    for text in ("abcabcab", "hello", "there", "length", "sharp"):
        prompt = loaded.tokens(text)
        first, second = loaded.model.generate(prompt, suppress_tokens=None, **options)[0, prompt.shape[1] :].tolist()
        if first not in letters or second not in letters:
            continue  # the random model says a marker that no text writes
        right, wrong = letters[first] + letters[second], letters[first] + letters[5 + (second - 4) % 59]
        assert [a.exact for a in answer(loaded, [(text, right), (text, wrong)])] == [True, False]
        return
    pytest.fail("no text whose continuation can be written")


def test_batches_change_nothing(loaded):
    alone, together = answer(loaded, QUESTIONS), answer(loaded, QUESTIONS, batch=3)
    for one, other in zip(alone, together, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.exact == other.exact


def test_learning_moves_every_head_and_only_the_policy(loaded):
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    recipe = Recipe(steps=12, learning_rate=0.05, penalty=0.0, windows=(32,), n0=8.0)
    result = learn(loaded, lambda step: QUESTIONS, [loaded.tokens(TEXT)], recipe)
    asked = result.course.answers
    assert asked[-1] < asked[0]
    assert asked[0] == pytest.approx(float(answer_losses(loaded, QUESTIONS).mean().detach()), rel=1e-5)
    for layer in result.policy.policies:
        assert np.shape(layer.a) == (4, 1)
        for name in "abc":
            assert np.all(np.asarray(getattr(layer, name)) != 0)
    for name, value in loaded.model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.requires_grad and parameter.grad is None for parameter in loaded.model.parameters())


def test_only_what_is_to_be_learned_is(loaded):
    recipe = Recipe(learned="b", steps=2, penalty=0.0, windows=(32,))
    for layer in learn(loaded, lambda step: QUESTIONS, [loaded.tokens(TEXT)], recipe).policy.policies:
        assert not np.any(layer.a) and not np.any(layer.c) and np.all(layer.b)  # noqa: PT018
    with pytest.raises(ValueError, match="a, b, c"):
        Recipe(learned="d")


def test_the_penalty_holds_the_model_to_itself(loaded):
    ids = loaded.tokens(TEXT)[:, :64]
    assert float(cost_of(loaded, ids, sharpmax.Constant(1.0))) == pytest.approx(0, abs=1e-6)
    apart = {}
    for penalty in (0.0, 100.0):
        recipe = Recipe(steps=12, learning_rate=0.05, penalty=penalty, windows=(64,), n0=8.0)
        policy = learn(loaded, lambda step: QUESTIONS, [ids], recipe).policy
        with torch.no_grad():
            apart[penalty] = float(cost_of(loaded, ids, policy))
    assert apart[100.0] < apart[0.0] / 2


def test_side_by_side_is_as_one_by_one(loaded):
    """Each with its own questions, allowance and seed; one of them learns b alone."""
    recipes = [
        Recipe(steps=4, learning_rate=0.05, windows=(16, 32), text_tokens=64, n0=8.0, seed=1),
        Recipe("b", 4, learning_rate=0.05, allowed=0.01, windows=(16, 32), text_tokens=64, n0=8.0, seed=2),
    ]
    draws = [lambda step: QUESTIONS[:2], lambda step: QUESTIONS[1:]]
    texts = [loaded.tokens(TEXT), loaded.tokens(TEXT[::-1])]
    for alone, together in zip(
        (learn(loaded, d, texts, r) for d, r in zip(draws, recipes, strict=True)),
        learn_side_by_side(loaded, draws, texts, recipes),
        strict=True,
    ):
        np.testing.assert_allclose(alone.course.cost, together.course.cost, rtol=1e-3, atol=1e-6)
        for one, other in zip(alone.policy.policies, together.policy.policies, strict=True):
            for name in "abc":
                np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=2e-3)
    with pytest.raises(ValueError, match="side by side"):
        learn_side_by_side(loaded, draws, texts, [recipes[0], Recipe(steps=9)])


def test_it_learns_under_autocast_with_logits_in_float32(loaded):
    """What a GPU does: products in bfloat16, while losses and the cost of text keep their digits."""
    recipe = Recipe(steps=8, learning_rate=0.05, penalty=1.0, windows=(32,), n0=8.0)
    exact = learn(loaded, lambda step: QUESTIONS, [loaded.tokens(TEXT)], recipe).course
    with torch.autocast("cpu", torch.bfloat16):
        assert loaded.logits(loaded.hidden(loaded.tokens(TEXT))).dtype == torch.float32
        half = learn(loaded, lambda step: QUESTIONS, [loaded.tokens(TEXT)], recipe).course
    np.testing.assert_allclose(half.answers, exact.answers, rtol=0.02)
    assert half.answers[-1] < half.answers[0]


def test_a_killed_fit_continues_to_the_same_end(loaded, tmp_path):
    recipe = Recipe(steps=12, learning_rate=0.05, allowed=0.01, windows=(16, 32), text_tokens=32, n0=8.0)
    texts = [loaded.tokens(TEXT)]
    whole = learn(loaded, lambda step: QUESTIONS, texts, recipe)

    def killed(step):
        if step == 8:
            raise KeyboardInterrupt
        return QUESTIONS

    keep = tmp_path / "fit.safetensors"
    with pytest.raises(KeyboardInterrupt):
        learn(loaded, killed, texts, recipe, keep=keep)
    asked = []
    again = learn(loaded, lambda step: asked.append(step) or QUESTIONS, texts, recipe, keep=keep)
    assert asked == list(range(5, 12))
    assert again.course == whole.course
    assert again.policy == whole.policy
    with pytest.raises(ValueError, match="another fit"):
        learn(loaded, killed, texts, Recipe(steps=12, windows=(16,)), keep=keep)


def test_a_price_follows_what_is_allowed(loaded):
    """Too much is allowed: the price falls. Too little: it rises, and the cost stays lower."""
    ids, ends = loaded.tokens(TEXT)[:, :64], {}
    for allowed in (1.0, 1e-7):
        recipe = Recipe(steps=30, learning_rate=0.05, penalty=1.0, allowed=allowed, windows=(64,), n0=8.0)
        course = learn(loaded, lambda step: QUESTIONS, [ids], recipe).course
        ends[allowed] = course.price[-1], course.cost[-1]
    assert ends[1.0][0] < 0.5 < 2 < ends[1e-7][0]
    assert ends[1e-7][1] < ends[1.0][1]


def test_the_cost_of_text_is_the_divergence(loaded):
    policy = sharpmax.Constant(1.7)
    ids = loaded.tokens(TEXT)[:, :48].reshape(2, 24)
    with torch.no_grad():
        plain = torch.log_softmax(loaded.model(ids).logits, -1)
        with sharpen(loaded.model, policy):
            sharp = torch.log_softmax(loaded.model(ids).logits, -1)
        apart = float((plain.exp() * (plain - sharp)).sum(-1).mean())
    assert cost_of(loaded, ids, policy) == pytest.approx(apart, rel=1e-4)


def test_truth_counts_the_loss_of_the_text_itself(loaded):
    """Text that the policy predicts better is no cost: with truth 1 the cost is the rise of its loss, signed."""
    ids = loaded.tokens(TEXT)[:, :48].reshape(2, 24)
    for beta in (0.6, 1.7):
        policy = sharpmax.Constant(beta)
        with torch.no_grad():
            before = token_losses(loaded, ids).mean()
            with sharpen(loaded.model, policy):
                rise = float(token_losses(loaded, ids).mean() - before)
        assert cost_of(loaded, ids, policy, truth=1.0) == pytest.approx(rise, rel=1e-3)
        mean = (cost_of(loaded, ids, policy) + rise) / 2
        assert cost_of(loaded, ids, policy, truth=0.5) == pytest.approx(mean, rel=1e-3)
    with pytest.raises(ValueError, match="truth from 0 to 1, got 2"):
        Recipe(truth=2.0)


def test_several_answers_in_one_text_are_asked_at_once(loaded):
    """What is given and asked for by turns: each answer has the loss it has when asked alone."""
    parts = ("The code of the bell is", " 12", ". The code of the lamp is", " 34")
    together = answer(loaded, [parts])
    alone = answer(loaded, [parts[:2], ("".join(parts[:3]), parts[3])])
    assert [a.exact for a in together] == [a.exact for a in alone]
    assert [a.loss for a in together] == pytest.approx([a.loss for a in alone], rel=1e-4)
    mean = float(answer_losses(loaded, [parts]).detach())
    assert mean == pytest.approx(np.mean([a.loss for a in alone]), rel=1e-4)
    with pytest.raises(ValueError, match="begin it with a space"):
        answer(loaded, [("only given",)])
    with pytest.raises(ValueError, match="no tokens to write ''"):
        answer(loaded, [("given", "")])


def test_match_leaves_short_rows_alone_and_sharpens_long_ones(loaded):
    policy = match(loaded, TEXT, [16, 32, 64, 128], reference=16, rows=8)
    assert query_heads(loaded) == [4, 4]
    seen = {}
    for name, used in (("plain", sharpmax.Constant(1.0)), ("matched", policy)):
        growth = []
        ids = loaded.tokens(TEXT)[:, :256]

        def observe(layer, stats, growth=growth):
            beta, n = stats.inverse_temperature, stats.count
            growth.append((beta[n <= 16].max(), beta[..., -1].mean()))

        with torch.no_grad(), sharpen(loaded.model, used, observer=observe):
            loaded.model(ids)
        seen[name] = growth
    assert all(short == 1 for short, _ in seen["matched"])
    assert max(long for _, long in seen["matched"]) > 1


def per_layer(*heads):
    return sharpmax.PerLayer((sharpmax.LogLinear(a=tuple((a,) for a in heads), b=((0.0,),) * 4, c=((0.0,),) * 4),) * 2)


def test_what_is_kept_is_weaker_and_sparser():
    fitted = per_layer(0.1, 0.2, 0.3, 0.4)
    assert kept(fitted, 1.0, 0.5) == per_layer(0.05, 0.1, 0.15, 0.2)
    assert kept(fitted, 0.5, 0.5) == per_layer(0.0, 0.0, 0.15, 0.2)


def test_the_plain_model_may_be_the_best_choice(loaded):
    choice = choose(loaded, per_layer(2.0, 2.0, 2.0, 2.0), exam(), most_rise=-1.0)
    assert set(choice.scores) == {"plain", "50% of heads at strength 1"} | {
        f"100% of heads at strength {strength}" for strength in (1, 0.5, 0.25, 0.125, 0.0625)
    }
    assert (choice.name, choice.policy) == (None, None)


@pytest.mark.parametrize(
    ("least_loss", "allowed", "best"),
    [
        (9.0, 5.3, 5.25),  # far beyond where it was fitted; text refuses more
        (1e6, 1e6, 983_040.0),  # no end, and not for long: steps grow
        (9.0, 1.63, 1.625),
        (1.2, 9.0, 1.1875),  # answers lose more on both sides
        (1.0, 9.0, 1.0),
        (0.3, 9.0, 0.3125),
        (9.0, 0.2, 0.1875),  # as fitted it costs too much
        (9.0, 0.05, None),
    ],
)
def test_the_strength_is_the_best_that_text_allows_wherever_it_lies(monkeypatch, least_loss, allowed, best):
    def scored(_, strength):
        rise = 0.004 * (strength / allowed) ** 2
        return {"answer_loss": abs(strength - least_loss), "accuracy": 0.5, "rise_at_most": rise}

    def strength_of(policy):
        return float(sum(layer.a[0][0] for layer in policy.policies) / 2)

    monkeypatch.setattr(choosing, "sit", lambda _, __, policy=None: 0.0 if policy is None else strength_of(policy))
    monkeypatch.setattr(choosing, "score", scored)
    choice = choose(None, per_layer(1.0, 1.0, 1.0, 1.0), None, most_rise=0.005)
    assert choice.name == (best and f"100% of heads at strength {best:g}")
    if best is not None:
        assert strength_of(choice.policy) == best
        step = 2 * FINE * max(best, 1.0)
        assert best + step > min(allowed, least_loss)
        assert len(choice.scores) < 30


def test_a_rise_is_what_it_may_be_not_what_a_few_windows_say():
    """The same mean: windows that agree leave it there, windows that differ may hide a rise of any size."""
    plain = Sheet({}, {("text", 32): [1.0] * 6}, 1.0)
    agreeing, differing = (
        Sheet({}, {("text", 32): [1.0 + 0.001 + spread * (-1) ** i for i in range(6)]}, 1.0) for spread in (1e-5, 0.01)
    )
    rise, at_most = worst_perplexity_rise(plain, agreeing)
    assert rise == pytest.approx(0.001, rel=1e-3)
    assert at_most == pytest.approx(0.001, rel=0.02)
    rise, at_most = worst_perplexity_rise(plain, differing)
    assert rise == pytest.approx(0.001, rel=1e-3)
    assert at_most > 0.008


def test_search_keeps_what_lowers_the_loss(loaded):
    choice = search(loaded, 2, (0.8, 1.25), exam(), most_rise=math.inf)
    assert choice.policy is not None
    best = min(score["answer_loss"] for score in choice.scores.values())
    found = sit(loaded, exam(), choice.policy)
    assert np.mean([a.loss for a in found.answers["letters", 1]]) == pytest.approx(best, rel=1e-5)


def test_a_judgement_is_paired_and_strict(loaded):
    judged = compare(sit(loaded, exam()), sit(loaded, exam(), sharpmax.Constant(1.0)))
    assert judged.overall[1].difference == pytest.approx(0, abs=1e-5)
    assert judged.verdict(most_rise=1.0) == Verdict.NO_GAIN
    content = json.loads(json.dumps(judged.to_json()))
    assert Judgement.from_json(content) == judged
    assert content["text"]["32"]["items"] == 10
    assert content["tasks"]["letters"]["1"]["accuracy"]["items"] == 3


def sheet(exact, loss, text=1.0):
    return Sheet(
        {("letters", 1): [Answered(loss + 0.01 * i, e) for i, e in enumerate(exact)]}, {("text", 32): [text] * 3}, 1.0
    )


@pytest.mark.parametrize(
    ("after", "gains"),
    [
        (sheet([True] * 20 + [False] * 20, 1.0), True),  # right more often, no less loss
        (sheet([True] * 10 + [False] * 30, 0.5), True),  # less loss, right as often
        (sheet([True] * 5 + [False] * 35, 0.5), False),  # less loss, but right less often
        (sheet([True] * 20 + [False] * 20, 1.0, text=1.02), False),  # text costs 2 %
        (sheet([True] * 10 + [False] * 30, 1.0), False),  # nothing
    ],
)
def test_a_gain_is_in_what_a_user_cares_about(after, gains):
    before = sheet([True] * 10 + [False] * 30, 1.0)
    # Losses that differ by a constant have no spread; a little of it makes the paired test a test.
    rng = np.random.default_rng(0)
    for one in (before, after):
        one.answers["letters", 1][:] = [
            Answered(a.loss + 0.01 * rng.random(), a.exact) for a in one.answers["letters", 1]
        ]
    assert (compare(before, after).verdict(most_rise=0.005) == Verdict.GAINS) == gains


def test_a_task_that_surely_got_worse_is_no_gain():
    def two(first, second):
        return Sheet(
            {("a", 1): [Answered(1.0, e) for e in first], ("b", 1): [Answered(1.0, e) for e in second]}, {}, 1.0
        )

    before, after = two([False] * 40, [True] * 20), two([True] * 40, [False] * 20)
    assert compare(before, after).overall[0].difference > 0
    assert compare(before, after).verdict(most_rise=0.005) == Verdict.NO_GAIN


@pytest.mark.parametrize(
    ("rises", "right", "verdict"),
    [
        ([-0.010, -0.001, -0.004, -0.006], 20, "gains"),  # the interval ends below what is allowed
        ([-0.01] * 4, 20, "gains"),
        ([0.03, 0.05, 0.04, 0.045], 20, "no gain"),  # it begins above
        ([-0.01, 0.01], 20, "undecided"),  # two windows: -13 to +13 %
        ([0.01, -0.02, 0.03, 0.02], 20, "undecided"),  # the mean is above, and may be chance
        ([-0.002], 20, "undecided"),  # of one window nothing can be said
        ([-0.01, 0.01], 10, "no gain"),  # nor need it be, where answers are as before
        ([], 20, "gains"),  # no text was asked for
    ],
)
def test_text_decides_only_where_its_interval_does_not_hold_the_allowed_rise(rises, right, verdict):
    def taken(exact, losses):
        text = {("text", 32): losses} if losses else {}
        return Sheet({("a", 1): [Answered(1.0, i < exact) for i in range(40)]}, text, 1.0)

    judged = compare(taken(10, [1.0 for _ in rises]), taken(right, [1 + rise for rise in rises]))
    assert judged.verdict(most_rise=0.005) == verdict
    if verdict == "undecided":
        assert judged.undecided(most_rise=0.005) == [("text", 32)]
    if len(rises) > 1 and verdict == "undecided":
        low, high = ttest_rel([1 + rise for rise in rises], [1.0 for _ in rises]).confidence_interval(0.95)
        assert low < math.log1p(0.005) < high


def test_whether_a_model_takes_a_policy_is_asked_without_a_word(loaded, recwarn):
    must_take(loaded, sharpmax.PAPER)
    assert not recwarn
    with pytest.raises(ValueError, match="7 layers"):
        must_take(loaded, sharpmax.PerLayer((sharpmax.Constant(1.1),) * 7))


def test_a_sheet_comes_back_from_json(loaded):
    taken = sit(loaded, exam()).rounded()
    assert Sheet.from_json(json.loads(json.dumps(taken.to_json()))) == taken


def test_the_worst_kind_of_text_counts():
    plain = Sheet({}, {("text", 32): [1.0] * 4, ("source", 32): [2.0] * 4}, 1.0)
    after = Sheet({}, {("text", 32): [0.9] * 4, ("source", 32): [2.01] * 4}, 1.0)
    assert worst_perplexity_rise(plain, after)[0] == pytest.approx(math.expm1(0.01))
    judged = compare(plain, after)
    assert judged.worst_rise == pytest.approx(math.expm1(0.01))
    assert set(judged.to_json()["text"]) == {"32", "source 32"}
    assert Sheet.from_json(json.loads(json.dumps(after.to_json()))) == after


def test_a_price_forgets_an_early_excess():
    """Costs far above what is allowed count as twice it: once they are mended the price soon turns."""
    price = Price(40.0, allowed=0.004)
    for _ in range(5):
        price.follow(0.09)
    high = price.value
    for _ in range(8):
        price.follow(0.0)
    assert high > 40
    assert price.value < high
    fixed = Price(40.0, None)
    fixed.follow(0.09)
    assert fixed.value == 40


def test_each_kind_of_text_has_its_own_price(loaded):
    """One of two texts repeats a letter, and costs nothing: its price falls, the other's rises."""
    recipe = Recipe(steps=24, learning_rate=0.05, penalty=1.0, allowed=1e-6, windows=(16, 32), n0=8.0)
    easy = torch.zeros(1, 64, dtype=torch.long) + 7
    course = learn(loaded, lambda step: QUESTIONS, [loaded.tokens(TEXT)[:, :64], easy], recipe).course
    by_turn = [course.price[turn::4] for turn in range(4)]
    assert all(prices[0] == 1 for prices in by_turn)
    assert len({round(prices[-1], 6) for prices in by_turn}) > 1


def test_an_empty_text_holds_a_model_to_nothing(loaded):
    with pytest.raises(ValueError, match="texts of two tokens or more"):
        learn(loaded, lambda step: QUESTIONS, [loaded.tokens("")], Recipe(steps=1, windows=(32,)))


@pytest.mark.parametrize("texts", [True, False])
def test_time_is_measured_by_turns_after_a_warm_up(loaded, texts, monkeypatch):
    """A clock on which plain reading takes 2 s and sharpened 3 s, but for one turn and the first, which take ages."""
    clock, turns = [0.0], []

    def read(*_, **__):
        sharpened = loaded.model.config._attn_implementation.startswith("sharpmax")
        turns.append(sharpened)
        clock[0] += 100.0 if len(turns) in (1, 2, 5) else 3.0 if sharpened else 2.0
        return []

    monkeypatch.setattr(judging.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(judging, "text_losses" if texts else "answer", read)
    asked = exam() if texts else Exam({"letters": {1: QUESTIONS}}, {}, ())
    assert judging.time_ratio(loaded, asked, sharpmax.Constant(1.1)) == 1.5
    assert turns == [False, True] * (1 + judging.TURNS)


def test_time_is_measured_on_no_more_text_than_the_model_holds():
    """A model with 64 learned positions has none for the next token: it is not asked for 1,024."""
    small = tiny("gpt2", max_position_embeddings=64)
    asked = Exam({}, {"text": small.tokens(TEXT * 8)}, (32,))
    assert asked.texts["text"].shape[1] > small.context
    assert judging.time_ratio(small, asked, sharpmax.Constant(1.1)) > 0
