"""One thread a worker: the cases are tiny, and threads that wait for one another on a busy machine take minutes."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def poisoned(monkeypatch):
    """What is allocated without a value is NaN, or a number that is nobody's index: what nobody writes shows."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, _poisoning(getattr(owner, name)))


def _poisoning(allocate):
    def allocated(*arguments, **options):
        made = allocate(*arguments, **options)
        return made.fill_(torch.nan if made.is_floating_point() else torch.iinfo(made.dtype).min)

    return allocated
