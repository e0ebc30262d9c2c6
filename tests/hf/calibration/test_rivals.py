"""The rivals of a card: plain where they begin, fitted by the card's own loop, and gone without a trace."""

from dataclasses import replace

import pytest
import torch
from transformers import Llama4ForCausalLM, Llama4TextConfig

from sharpmax import SelfExtend, Yarn
from sharpmax.hf import LoadedModel, sharpen
from sharpmax.hf.calibration.answers import answer_losses
from sharpmax.hf.calibration.choose import choose
from sharpmax.hf.calibration.descent import Recipe
from sharpmax.hf.calibration.judge import sit
from sharpmax.hf.calibration.learn import learn
from sharpmax.hf.calibration.rivals import ARMS, MERGEABLE, Rival, learn_rival, save_merged
from sharpmax.hf.models.gemma import gemma
from tests.hf.calibration.questions import QUESTIONS, TEXT, exam
from tests.hf.tiny import tiny

RECIPE = Recipe(steps=4, windows=(32,), text_tokens=32, n0=8.0)
NUMBERS = {"learn": 24, "headscale": 8, "seal-h": 8, "seal-c": 64, "position": 8}


def fitted(loaded, arm, recipe=RECIPE, **options):
    return learn_rival(loaded, arm, lambda step: QUESTIONS, [loaded.tokens(TEXT)], recipe, **options)


@torch.no_grad()
@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_begins_as_the_plain_model(loaded, arm):
    ids = loaded.tokens(TEXT)[:, :40]
    plain, rival = loaded.hidden(ids), Rival.start(loaded, arm, RECIPE)
    with rival.on(loaded.model):
        begun = loaded.hidden(ids)
    if set(rival.parts) <= MERGEABLE:
        assert torch.equal(begun, plain)
    else:  # its attention is another implementation's
        torch.testing.assert_close(begun, plain)
    assert rival.count == NUMBERS.get(arm, rival.count)


@pytest.mark.parametrize("arm", ARMS)
def test_the_gradient_reaches_every_number(loaded, arm):
    rival = Rival.start(loaded, arm, RECIPE)
    with torch.no_grad():
        for tensor in rival.tensors:  # beside 0: the inner side of a LoRA has no gradient there
            tensor += 0.01 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0))
    with rival.on(loaded.model):
        answer_losses(loaded, QUESTIONS).mean().backward()
    assert all(tensor.grad is not None and torch.any(tensor.grad != 0) for tensor in rival.tensors)
    loaded.model.zero_grad()


@pytest.mark.parametrize("arm", ARMS)
def test_fitting_lowers_the_loss_and_leaves_the_model_as_it_was(loaded, arm):
    before = dict(loaded.model.named_parameters())
    values = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    found = fitted(loaded, arm, Recipe(steps=4, windows=(32,), text_tokens=32, n0=8.0, penalty=0.0))
    assert found.course.answers[-1] < found.course.answers[0]
    assert not any(tensor.requires_grad for tensor in found.rival.tensors)
    for name, value in loaded.model.named_parameters():
        assert value is before[name]
        assert torch.equal(value, values[name])
        assert value.requires_grad
        assert value.grad is None


def test_the_card_among_the_arms_is_that_of_learn(loaded):
    found = fitted(loaded, "learn")
    card = learn(loaded, lambda step: QUESTIONS, [loaded.tokens(TEXT)], RECIPE)
    assert found.course == card.course
    assert found.rival.policy.freeze() == card.policy


def test_headscale_is_learn_with_a_alone(loaded):
    """To rounding: one merges its betas into the queries, the other scales them at every call."""
    found = fitted(loaded, "headscale").rival
    card = learn(loaded, lambda step: QUESTIONS, [loaded.tokens(TEXT)], Recipe(**{**vars(RECIPE), "learned": "a"}))
    for scale, layer in zip(found.numbers["headscale"], card.policy.policies, strict=True):
        torch.testing.assert_close(scale, torch.tensor(layer.a)[:, 0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("arm", ["position", "card+lora"])
def test_a_killed_fit_continues_to_the_same_end(loaded, tmp_path, arm):
    recipe = Recipe(steps=8, windows=(16, 32), text_tokens=32, n0=8.0, allowed=0.01)
    whole, keep = fitted(loaded, arm, recipe), tmp_path / "fit.safetensors"

    def killed(step):
        if step == 6:
            raise KeyboardInterrupt
        return QUESTIONS

    with pytest.raises(KeyboardInterrupt):
        learn_rival(loaded, arm, killed, [loaded.tokens(TEXT)], recipe, keep=keep)
    for _ in range(2):  # goes on; then reads the end back
        again = fitted(loaded, arm, recipe, keep=keep)
        assert again.course == whole.course
        pairs = zip(again.rival.tensors, whole.rival.tensors, strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("arm", [arm for arm, of in ARMS.items() if set(of.parts) <= MERGEABLE])
def test_merged_it_answers_as_it_was_judged(loaded, arm):
    rival = fitted(loaded, arm).rival.kept(1.0, 2.0)
    asked = exam()
    judged, plain = sit(loaded, asked, rival), sit(loaded, asked)
    with rival.merge(loaded.model):
        merged = sit(loaded, asked)
    assert merged.answers == judged.answers
    assert merged.losses == judged.losses
    assert merged.answers != plain.answers
    assert sit(loaded, asked).answers == plain.answers


def test_what_depends_on_each_row_is_not_merged(loaded):
    for arm in ("learn", "position", "card+seal-h"):
        with pytest.raises(NotImplementedError, match="cannot be merged"):
            Rival.start(loaded, arm, RECIPE).merge(loaded.model)


def test_a_strength_of_0_is_plain_and_half_the_heads_keep_their_own(loaded):
    rival = fitted(loaded, "card+seal-h").rival
    for name in rival.numbers:
        assert not any(torch.any(layer) for layer in rival.kept(1.0, 0.0)._kept(name))
        whole, half = (torch.cat(rival.kept(share, 1.0)._kept(name)).flatten() for share in (1.0, 0.5))
        assert torch.equal(half[half != 0], whole[half != 0])
        assert int((half != 0).sum()) == len(whole) // 2


def test_a_strength_is_chosen_by_the_rule_of_cards(loaded):
    rival = fitted(loaded, "seal-c", Recipe(steps=8, windows=(32,), text_tokens=32, penalty=0.0)).rival
    choice = choose(loaded, rival, exam(), most_rise=10.0, fine=0.5)
    scores = {name: score["answer_loss"] for name, score in choice.scores.items()}
    assert choice.name == min(scores, key=scores.__getitem__) != "plain"
    assert choice.policy.strength > 0
    assert "50% of heads" in list(scores)[-1]
    assert not Rival.start(loaded, "card+lora", RECIPE).by_head


def test_what_a_model_cannot_have_is_refused(loaded):
    with pytest.raises(ValueError, match="an arm among learn, headscale"):
        Rival.start(loaded, "seal", RECIPE)
    shape = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    }
    config = Llama4TextConfig(**shape, vocab_size=64, intermediate_size=48, intermediate_size_mlp=48, pad_token_id=0)
    for normed in (tiny("qwen3"), LoadedModel("llama4", Llama4ForCausalLM(config).eval(), None)):
        with pytest.raises(NotImplementedError, match="normalises its queries"):
            Rival.start(normed, "headscale", RECIPE)
    for extension in (Yarn(2.0, 256), SelfExtend(2.0, 256)):
        plain = tiny("llama")
        with sharpen(plain.model, extension=extension):
            Rival.start(plain, "headscale", RECIPE)


def test_a_merged_model_is_saved_without_a_bar(loaded, tmp_path, capfd):
    loaded = replace(loaded, tokenizer=gemma("gemma-tiny").tokenizer)
    save_merged(loaded, Rival.start(loaded, "headscale", RECIPE), tmp_path)
    assert "Writing" not in capfd.readouterr().err
