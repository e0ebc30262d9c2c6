"""One fixture, four array libraries: what core promises, it promises on each."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import array_api_strict
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch


@dataclass(frozen=True)
class Library:
    """An array library: how to make its arrays, and how to read them back."""

    name: str
    xp: Any

    def array(self, values: Any, dtype: str | None = None) -> Any:
        values = np.asarray(values)
        if self.name == "torch":
            return torch.tensor(values, dtype=getattr(torch, dtype) if dtype else None)
        dtype = getattr(self.xp, dtype) if dtype else None
        return self.xp.asarray(values, dtype=dtype)

    def numpy(self, array: Any) -> np.ndarray:
        assert self.owns(array), f"expected an array of {self.name}, got {type(array)}"
        if self.name == "torch":
            array = array.detach().to(torch.float64) if array.is_floating_point() else array.detach()
        return np.asarray(array).astype(np.float64)

    def owns(self, array: Any) -> bool:
        kinds = {"numpy": (np.ndarray, np.generic), "torch": torch.Tensor, "jax": jax.Array}
        return isinstance(array, kinds.get(self.name, array_api_strict._array_object.Array))


LIBRARIES = {
    "numpy": Library("numpy", np),
    "torch": Library("torch", torch),
    "jax": Library("jax", jnp),
    "strict": Library("strict", array_api_strict),
}


@pytest.fixture(params=list(LIBRARIES))
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    with jax.enable_x64(True):
        yield LIBRARIES[request.param]
