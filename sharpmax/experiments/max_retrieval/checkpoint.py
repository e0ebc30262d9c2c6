"""The state of a training as one safetensors file, whole or absent: what a killed run continues from.

A pytree of arrays is stored by the path of each leaf, bit for bit; the newest file is the one with the most steps.
"""

from pathlib import Path
from typing import Any

from sharpmax import atomic
from sharpmax.extras import extra

with extra("jax"):
    import jax
    import numpy as np
    from safetensors.numpy import load, save

_PATTERN = "checkpoint-*.safetensors"


def save_checkpoint(folder: Path, step: int, tree: Any) -> None:
    """Write the tree as it is after `step` steps, then remove what it supersedes."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    older = list(folder.glob(_PATTERN))
    file = folder / f"checkpoint-{step:09d}.safetensors"
    atomic.write_bytes(file, save({jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}))
    for superseded in older:
        if superseded != file:
            superseded.unlink(missing_ok=True)


def load_checkpoint(folder: Path, like: Any) -> tuple[int, Any]:
    """Return the steps made and the tree of the newest checkpoint, shaped as `like`; (0, like) without one.

    Raises:
        ValueError: if the file holds another tree.
    """
    newest = max(folder.glob(_PATTERN), default=None)
    if newest is None:
        return 0, like
    stored = load(newest.read_bytes())
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    expected = {jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves}
    if expected != {name: array.shape for name, array in stored.items()}:
        raise ValueError(f"{newest} holds the state of another training; delete it, or choose another --out")
    restored = [jax.numpy.asarray(stored[name]) for name in expected]
    return int(newest.stem.removeprefix("checkpoint-")), jax.tree_util.tree_unflatten(structure, restored)
