"""PyTorch's own attention is called fastest kernel first, and the process's order of kernels is given back."""

from threading import Thread

import pytest
import torch

from sharpmax.torch import sdpa
from sharpmax.torch.sdpa import plain_attention
from sharpmax.torch.torch_internals import sdp_priority_order


def test_pytorchs_kernels_are_tried_fastest_first_and_the_order_is_given_back(monkeypatch):
    before = sdp_priority_order()
    orders = []
    stock = sdpa.scaled_dot_product_attention

    def noted(*tensors, **options):
        orders.append(sdp_priority_order())
        return stock(*tensors, **options)

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", noted)
    q = k = torch.randn(1, 2, 8, 16)
    plain_attention(q, k, k, scale=0.25, right=0)
    with pytest.raises(RuntimeError):
        plain_attention(q, k[..., :8], k, scale=0.25, right=0)
    fastest = [backend.value for backend in sdpa.FASTEST_FIRST]
    assert [order[: len(fastest)] for order in orders] == [fastest, fastest]
    assert sdp_priority_order() == before


def test_threads_leave_the_order_of_pytorchs_kernels_as_it_was():
    q, before = torch.randn(1, 1, 4, 8), sdp_priority_order()
    work = [
        Thread(target=lambda: [plain_attention(q, q, q, scale=1.0, right=0) for _ in range(1000)]) for _ in range(4)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert sdp_priority_order() == before
