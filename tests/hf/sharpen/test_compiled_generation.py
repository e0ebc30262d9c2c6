"""Generation is compiled once: the tokens of a static cache are those of eager decoding, and no step compiles anew."""

import pytest
import torch
from transformers import CompileConfig

import sharpmax
from sharpmax.hf import sharpen
from sharpmax.torch.torch_internals import graphs_compiled
from tests.hf.families import build, tokens
from tests.marks import slow

OF_HEADS = sharpmax.LogLinear(a=((0.3,), (-0.2,), (0.1,), (0.0,)), b=((0.2,), (0.1,), (0.0,), (0.3,)), c=0.1)
MIXED = sharpmax.PerHead((sharpmax.PAPER, sharpmax.Constant(2.0), sharpmax.EntropyTarget(0.5), sharpmax.LogLinear(0.1)))
POLICIES = {
    "a card": sharpmax.PerLayer((OF_HEADS, sharpmax.LogLinear(a=0.2, b=0.1, c=0.1))),
    "the paper's rule": sharpmax.PAPER,
    "constant": sharpmax.Constant(1.0),
    "entropy target": sharpmax.EntropyTarget(1.0),
    "a rule per head": MIXED,
}
QUICK = ("a card", "constant")
GREEDY = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def compiled_static(backend):
    config = CompileConfig(backend=backend, mode=None)
    config._compile_all_devices = True  # transformers compiles on a CPU only when it is told
    return {"cache_implementation": "static", "compile_config": config}


def prompts(seed=0, device="cpu"):
    return tokens(seed, batch=2, length=10).to(device)


def generated_without_another_graph(model, how):
    """Return the tokens of three calls; every step after the first may take the graph that is there."""
    device = model.device
    torch.compiler.reset()
    before = graphs_compiled()
    found = [model.generate(prompts(0, device), **GREEDY, **how)]
    assert graphs_compiled() - before == 1
    found += [model.generate(prompts(seed, device), **GREEDY, **how) for seed in (1, 2)]
    assert graphs_compiled() - before == 1
    return found


def assert_the_same_tokens(name, backend):
    model, static = build("llama"), {"cache_implementation": "static", "disable_compile": True}
    with sharpen(model, POLICIES[name]):
        eager = [model.generate(prompts(seed), **GREEDY) for seed in (0, 1, 2)]
        assert torch.equal(model.generate(prompts(), **GREEDY, **static), eager[0])
        compiled = generated_without_another_graph(model, compiled_static(backend))
    assert all(torch.equal(one, other) for one, other in zip(compiled, eager, strict=True))
    with sharpen(model, sharpmax.Constant(3.0)):
        assert not torch.equal(model.generate(prompts(), **GREEDY), eager[0]), "the tokens do not tell policies apart"


@pytest.mark.filterwarnings("ignore")  # of the compiler, on itself
@pytest.mark.parametrize("name", [*QUICK, *slow(*(name for name in POLICIES if name not in QUICK))])
def test_tokens_are_the_same_eager_static_and_compiled_and_no_step_compiles_anew(name):
    assert_the_same_tokens(name, "eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_card_generates_the_same_tokens_compiled_by_inductor():
    assert_the_same_tokens("a card", "inductor")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_number_that_changes_at_each_step_would_be_counted():
    """The fault that was: a counter of calls, visible to the compiler."""
    model = build("llama")
    attention = model.model.layers[0].self_attn
    inner, attention.steps = attention.forward, 0

    def counting(*arguments, **options):
        attention.steps += 1
        return inner(*arguments, **options) if attention.steps > 0 else None

    attention.forward = counting
    with sharpen(model, sharpmax.PAPER), pytest.raises(AssertionError):
        generated_without_another_graph(model, compiled_static("eager"))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", POLICIES)
def test_on_a_gpu_no_step_compiles_anew(name):
    model = build("llama").to("cuda", torch.bfloat16)
    with sharpen(model, POLICIES[name]):
        generated_without_another_graph(model, compiled_static("inductor"))
