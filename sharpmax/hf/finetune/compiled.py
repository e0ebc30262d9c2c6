"""A model's blocks compiled by torch, for as long as it trains: one compilation serves them all.

Norms, rotations and gates are many small steps over memory; compiled, they are few. Attention stays as it is (it is
`packing` that calls it), so what is compiled is the same under every policy.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from sharpmax.hf.sharpen.layers import attention_layers
from sharpmax.torch.torch_internals import run_uncompiled


@contextmanager
def compiled(model: nn.Module, *, backend: str = "inductor") -> Iterator[None]:
    """Inside this block every module of the model that holds an attention module runs compiled.

    Rows are of one width while a model trains, so shapes are taken as they are: no kernel has to serve another.
    """
    names = {layer.name.rpartition(".")[0] for layer in attention_layers(model)}
    blocks: list[Any] = [model.get_submodule(name) for name in sorted(names)]
    for block in blocks:
        block.compile(backend=backend, dynamic=False)
    try:
        yield
    finally:
        for block in blocks:
            run_uncompiled(block)
