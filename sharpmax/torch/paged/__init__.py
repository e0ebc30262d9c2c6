"""Attention on a paged cache: keys and values lie in blocks, and a table says which blocks are whose.

    call.py       the call and its checks; it chooses the kernels or PyTorch
    gathered.py   PyTorch: each sequence's keys are gathered, then attended to as usual

The kernels are in `torch/triton/paged.py`.
"""

from sharpmax.torch.paged.call import paged_attention
from sharpmax.torch.paged.pages import Pages

__all__ = ["Pages", "paged_attention"]
