"""Threads: many may call one sharpened model at once, but only one may sharpen it."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import sharpmax
from sharpmax.hf import sharpen
from tests.hf.families import build, inputs, output

SHARP = sharpmax.Constant(2.0)


def at_once(work, threads=4):
    """Run `work(i)` in threads that start together; returns their results, or raises what one raised."""
    gate = threading.Barrier(threads)

    def wait_and_work(index):
        gate.wait()
        return work(index)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(wait_and_work, range(threads)))


@pytest.mark.parametrize("family", ["llama", "albert"])
def test_many_threads_call_one_sharpened_model(family):
    """ALBERT runs one module as many layers, and so counts them: in each thread by itself."""
    model, given = build(family), inputs(family)
    with sharpen(model, sharpmax.PerLayer((SHARP, sharpmax.Constant(1.0)))) as on:
        expected = output(model, **given)
        before = on.calls
        outputs = at_once(lambda _: [output(model, **given) for _ in range(25)])
        assert on.calls - before == 4 * 25 * 2
    assert all(torch.equal(one, expected) for of_thread in outputs for one in of_thread)


def test_a_second_thread_may_not_sharpen_the_model_too():
    model, given = build("llama"), inputs("llama")
    twin = copy.deepcopy(model)
    with sharpen(model, SHARP):
        expected = output(model, **given)

        def other():
            with pytest.raises(RuntimeError, match=r"sharpened in another thread \(MainThread\).*copy\.deepcopy"):
                sharpen(model, sharpmax.Constant(0.5))
            with sharpen(twin, SHARP):
                return output(twin, **given)

        (found,) = at_once(lambda _: other(), threads=1)
        assert torch.equal(found, expected)
        assert torch.equal(output(model, **given), expected)
        with sharpen(model, sharpmax.Constant(0.5)):  # in the same thread policies nest
            assert not torch.equal(output(model, **given), expected)


def test_a_thread_that_ended_holds_no_model():
    model = build("llama")
    thread = threading.Thread(target=sharpen, args=(model, SHARP))
    thread.start()
    thread.join()
    outer = sharpen(model, SHARP)
    outer.restore()


def test_one_of_two_threads_wins_and_the_other_is_told():
    model, given = build("llama"), inputs("llama")
    betas = (2.0, 0.5)
    with sharpen(model, sharpmax.Constant(betas[0])):
        expected = {betas[0]: output(model, **given)}
    with sharpen(model, sharpmax.Constant(betas[1])):
        expected[betas[1]] = output(model, **given)

    def work(index):
        refused = 0
        for _ in range(50):
            try:
                with sharpen(model, sharpmax.Constant(betas[index])):
                    assert torch.equal(output(model, **given), expected[betas[index]])
            except RuntimeError as error:
                if "another thread" not in str(error):
                    raise
                refused += 1
        return refused

    assert min(at_once(work, threads=2)) < 50


@pytest.mark.parametrize("part", ["", "model"])
def test_switching_off_waits_for_a_pass_of_another_thread(part):
    model, given = build("llama"), inputs("llama")
    called = model.get_submodule(part)
    plain = output(called, **given)
    on = sharpen(model, SHARP)
    expected = output(called, **given)
    inside, switched_off = threading.Event(), threading.Event()

    def pause(*_):
        inside.set()
        switched_off.wait(0.5)  # as long as it can: switching off waits for this pass

    hook = model.model.layers[0].register_forward_hook(pause)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(output, called, **given)
        inside.wait()
        hook.remove()
        on.restore()
        switched_off.set()
        assert torch.equal(other.result(), expected)
    assert torch.equal(output(called, **given), plain)


def test_a_pass_that_raises_holds_nobody_up():
    model, given = build("llama"), inputs("llama")

    def fail(*_):
        raise ValueError("on purpose")

    with sharpen(model, SHARP):
        hook = model.model.layers[1].register_forward_hook(fail)

        def work(_):
            with pytest.raises(ValueError, match="on purpose"):
                output(model, **given)

        at_once(work)
        hook.remove()
