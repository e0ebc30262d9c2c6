"""Continuous batching inside `sharpen`: the same tokens as one request at a time.

On a GPU the kernels read the cache, inside the CUDA graphs of transformers: `make test-gpu`.
"""

import time
from dataclasses import replace

import pytest
import torch
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig

import sharpmax
from sharpmax.hf import sharpen
from sharpmax.hf.sharpen.interface import NAME
from sharpmax.hf.sharpen.paged import OLDEST
from tests.hf.families import VOCABULARY, build
from tests.marks import slow
from tests.torch.kernels import DEVICE

if tuple(map(int, transformers.__version__.split(".")[:2])) < OLDEST:  # its configuration takes no page_size
    pytest.skip("refused: `test_paged.py` tests that", allow_module_level=True)
PER_HEAD = sharpmax.LogLinear(a=((0.3,), (0.1,), (-0.2,), (0.0,)), b=0.2, c=0.1)
# Unless told, a manager takes most of the machine's memory for its cache.
SMALL = ContinuousBatchingConfig(num_blocks=64, page_size=16, max_batch_tokens=48)
GREEDY = {"do_sample": False, "pad_token_id": 0}


def made(family):
    return build(family, max_position_embeddings=256).to(DEVICE)


def prompts(count, longest=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    return [torch.randint(5, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def one_by_one(model, questions, config):
    def answer(ids):
        given = torch.tensor([ids], device=DEVICE)
        return model.generate(given, attention_mask=torch.ones_like(given), generation_config=config)[0, len(ids) :]

    return [answer(ids).tolist() for ids in questions]


def in_order(answers):
    return [answers[f"req_{i}"].generated_tokens for i in range(len(answers))]


@pytest.fixture(scope="module")
def config():
    """Greedy; its end is a token that some answers come to early and others never."""
    model = made("llama")
    with sharpen(model, PER_HEAD):
        free = one_by_one(model, prompts(16), GenerationConfig(max_new_tokens=12, eos_token_id=-1, **GREEDY))
    said = [token for answer in free for token in set(answer)]
    some = next(token for token in said if 2 <= sum(token in answer for answer in free) <= 12)
    return GenerationConfig(max_new_tokens=12, eos_token_id=some, **GREEDY)


@pytest.mark.parametrize(
    "policy",
    [PER_HEAD, *slow(sharpmax.PAPER, sharpmax.EntropyTarget(0.5)), sharpmax.Constant(1.0)],
    ids=lambda p: type(p).__name__,
)
@pytest.mark.filterwarnings("ignore::sharpmax.SilentPolicyWarning")
def test_sixteen_requests_at_once_answer_as_one_by_one(policy, config):
    model, questions = made("llama"), prompts(16)
    with sharpen(model, policy):
        expected = one_by_one(model, questions, config)
        got = in_order(model.generate_batch(questions, generation_config=config, continuous_batching_config=SMALL))
        assert model.config._attn_implementation == NAME
        assert one_by_one(model, questions[:1], config) == expected[:1]
    assert got == expected


def test_requests_that_join_late_and_end_early_answer_as_one_by_one(config):
    model, questions = made("llama"), prompts(16)
    with sharpen(model, PER_HEAD):
        expected = one_by_one(model, questions, config)
        assert len({len(answer) for answer in expected}) > 1, "no request ends early"
        options = {"generation_config": config, "continuous_batching_config": SMALL}
        with model.continuous_batching_context_manager(**options) as manager:
            names = [manager.add_request(ids) for ids in questions[:8]]
            done = [manager.get_result(timeout=60)]  # the other seven are on their way
            names += [manager.add_request(ids) for ids in questions[8:]]
            done += [manager.get_result(timeout=60) for _ in names[1:]]
    found = {result.request_id: result.generated_tokens for result in done}
    assert [found[name] for name in names] == expected


@pytest.mark.parametrize("family", [*slow("mistral", "gemma2"), "gpt_oss"])
def test_windows_softcaps_and_sinks_answer_as_one_by_one(family):
    config = GenerationConfig(max_new_tokens=6, eos_token_id=-1, **GREEDY)
    model, questions = made(family), prompts(6)
    policy = sharpmax.LogLinear(a=0.2, b=0.2, c=0.1)
    with sharpen(model, policy):
        expected = one_by_one(model, questions, config)
        got = in_order(model.generate_batch(questions, generation_config=config, continuous_batching_config=SMALL))
    assert got == expected


def test_the_policy_acts_in_it(config):
    model, questions = made("llama"), prompts(16)
    with sharpen(model, sharpmax.Constant(1.0)):
        plain = in_order(model.generate_batch(questions, generation_config=config, continuous_batching_config=SMALL))
    with sharpen(model, sharpmax.Constant(3.0)):
        sharp = in_order(model.generate_batch(questions, generation_config=config, continuous_batching_config=SMALL))
    assert plain != sharp


def test_an_observer_sees_every_row(config):
    seen = []
    model = made("llama")
    with sharpen(model, PER_HEAD, observer=lambda layer, stats: seen.append((layer, stats.count.shape))):
        model.generate_batch(prompts(3), generation_config=config, continuous_batching_config=SMALL)
    assert {layer for layer, _ in seen} == {0, 1}
    assert all(shape[:2] == (1, 4) for _, shape in seen)


@pytest.mark.parametrize(
    ("policy", "options", "may"),
    [
        (PER_HEAD, {}, True),
        (sharpmax.EntropyTarget(0.5), {}, False),
        (sharpmax.detach(sharpmax.EntropyTarget(0.5)), {}, False),
        (PER_HEAD, {"implementation": "eager"}, False),
        (PER_HEAD, {"observer": lambda layer, stats: None}, False),
    ],
)
def test_steps_are_cuda_graphs_only_where_the_host_takes_no_part(monkeypatch, policy, options, may):
    model, asked = made("llama"), []
    monkeypatch.setattr(type(model), "init_continuous_batching", lambda *given: asked.append(given[2]) or Manager())
    with sharpen(model, policy, **options):
        model.init_continuous_batching(GenerationConfig(), replace(SMALL, use_cuda_graph=True))
    assert asked[0].use_cuda_graph is may


class Manager:
    """Nothing to stop."""

    model = None

    def stop(self):
        """Stop nothing."""

    def is_running(self):
        return False


def test_leaving_stops_a_manager_that_is_on(config):
    model = made("llama")
    before = model.config._attn_implementation
    with sharpen(model, PER_HEAD):
        manager = model.init_continuous_batching(generation_config=config, continuous_batching_config=SMALL)
        manager.start()
        manager.add_request(prompts(1)[0])
        deadline = time.monotonic() + 60
        while manager.batch_processor is None and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(RuntimeError, match=r"manager is on.*stop the manager"):
            model(torch.tensor([[5, 6, 7]], device=DEVICE))
        with pytest.raises(RuntimeError, match=r"manager is on.*stop it before another"):
            sharpen(model, sharpmax.PAPER)
    assert not manager.is_running()
    assert model.config._attn_implementation == before
    assert "init_continuous_batching" not in vars(model)


def test_a_model_that_only_attends_eagerly_is_refused():
    model = made("llama")
    with sharpen(model, PER_HEAD):
        model.config.__dict__["_attn_implementation_internal"] = "sharpmax_eager"
        with pytest.raises(NotImplementedError, match="attends eagerly only"):
            model.init_continuous_batching(continuous_batching_config=SMALL)


def test_a_manager_kept_for_the_next_time_ends_with_the_block(config):
    model, questions = made("llama"), prompts(4)
    options = {"generation_config": config, "continuous_batching_config": SMALL, "persistent_manager": True}
    with sharpen(model, PER_HEAD):
        first = in_order(model.generate_batch(questions, **options))
        assert model._cached_continuous_batching_manager is not None
        again = model.generate_batch(questions, **options)
        assert sorted(one.generated_tokens for one in again.values()) == sorted(first)
    assert not hasattr(model, "_cached_continuous_batching_manager")


@pytest.mark.parametrize("at_work", [False, True], ids=["made before", "at work before"])
def test_a_manager_of_before_answers_with_the_policy(config, at_work):
    model, questions = made("llama"), prompts(4)
    model.set_attn_implementation("sdpa")
    options = {"generation_config": config, "continuous_batching_config": SMALL}
    with sharpen(model, PER_HEAD):
        expected = one_by_one(model, questions, config)
    manager = model.init_continuous_batching(**options)
    if at_work:  # with a cache and masks of its own
        manager.start()
        manager.add_request(questions[0])
        manager.get_result(timeout=60)
    with sharpen(model, PER_HEAD):
        if not at_work:
            manager.start()
        names = manager.add_requests(questions)
        found = {one.request_id: one.generated_tokens for one in (manager.get_result(timeout=60) for _ in names)}
        manager.stop(block=True)
    assert [found[name] for name in names] == expected
