"""One thread a worker: the cases are tiny, and threads that wait for one another on a busy machine take minutes."""

import pytest
import torch

from tests.torch.quick_interpreter import quicken

torch.set_num_threads(1)
quicken()


@pytest.fixture
def poisoned(monkeypatch):
    """What is allocated without a value is NaN, or a number that is nobody's index: what nobody writes shows."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, _poisoning(getattr(owner, name)))


def pytest_runtest_setup(item):
    """Skip what is written for GPUs of another capability than this one's."""
    marker = item.get_closest_marker("gpu")
    if marker is None or not torch.cuda.is_available():  # without a GPU `tests/conftest.py` lets it fail
        return
    if marker.kwargs.get("capability", torch.cuda.get_device_capability()) != torch.cuda.get_device_capability():
        pytest.skip(f"written for GPUs of capability {marker.kwargs['capability']}")


def _poisoning(allocate):
    def allocated(*arguments, **options):
        made = allocate(*arguments, **options)
        return made.fill_(torch.nan if made.is_floating_point() else torch.iinfo(made.dtype).min)

    return allocated


@pytest.fixture
def as_python(monkeypatch, poisoned):
    """The launches of both kernels run as Python, on a device of three multiprocessors and a small cache."""
    from sharpmax.torch.triton.hopper import single_pass as once
    from sharpmax.torch.triton.hopper import statistics as hopper
    from sharpmax.torch.triton.hopper import work_queue
    from tests.torch.triton.hopper import gluon_as_python

    for module, name in ((hopper, "statistics_kernel"), (once, "single_pass_kernel")):
        monkeypatch.setattr(module, name, gluon_as_python.Launched(getattr(module, name)))
    monkeypatch.setattr(work_queue, "multiprocessors", lambda device: 3)
    monkeypatch.setattr(work_queue, "CACHED", 160_000)


@pytest.fixture
def on_hopper(request, poisoned):
    """The kernels themselves on such a GPU; where there is none, as Python."""
    if not torch.cuda.is_available():
        request.getfixturevalue("as_python")
    elif torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for Hopper")
