"""Thousands of sharpened calls: results stay bit-equal; memory, objects and file descriptors stay flat."""

import gc
import itertools
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch

import sharpmax
from sharpmax.hf import sharpen
from tests.hf.families import build, inputs, output, tokens

SHARP = sharpmax.Constant(2.0)
MEGABYTES = 16
"""Growth of the process that the allocator may cause by itself; a kept output of each call would be 24 MB."""


def held():
    """Return what a leak would raise: bytes, file descriptors, and Python objects."""
    gc.collect()
    process = psutil.Process()
    return process.memory_info().rss, process.num_fds(), len(gc.get_objects())


def assert_flat(before, after):
    assert after[0] - before[0] < MEGABYTES * 2**20
    assert after[1] <= before[1]
    assert after[2] - before[2] < 100


def soak(calls):
    model, ids = build("llama"), tokens()
    options = {"max_new_tokens": 2, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with sharpen(model, SHARP):
        logits, answer = output(model, input_ids=ids), model.generate(ids, **options)

    def both():
        with sharpen(model, SHARP):
            assert torch.equal(output(model, input_ids=ids), logits)
            assert torch.equal(model.generate(ids, **options), answer)

    for _ in range(20):
        both()
    before = held()
    for _ in range(calls // 2):
        both()
    assert_flat(before, held())


def test_a_few_calls_leave_nothing_behind():
    soak(40)


@pytest.mark.slow
def test_thousands_of_calls_leave_nothing_behind():
    soak(2000)


@pytest.mark.slow
def test_threads_on_two_models_leave_nothing_behind():
    models = [build("llama", seed=seed) for seed in (0, 1)]
    given = inputs("llama")

    def work(index):
        model, betas = models[index], (2.0, 0.5)
        expected = {}
        for beta in itertools.islice(itertools.cycle(betas), 250):
            with sharpen(model, sharpmax.Constant(beta)):
                found = output(model, **given)
            assert torch.equal(found, expected.setdefault(beta, found))

    def both():
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, range(2)))

    both()
    before = held()
    both()
    assert_flat(before, held())
