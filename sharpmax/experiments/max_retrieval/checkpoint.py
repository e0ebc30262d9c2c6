"""The state of a training as one safetensors file, whole or absent: what a killed run continues from.

A pytree of arrays is stored by the path of each leaf, bit for bit; the newest file is the one with the most steps. With
it go the commits of the code that made those steps: a run may be continued by later code.
"""

from pathlib import Path
from typing import Any

from sharpmax.extras import extra
from sharpmax.files import atomic

with extra("jax"):
    import jax
    import numpy as np
    from safetensors import SafetensorError, safe_open
    from safetensors.numpy import save

_PATTERN = "checkpoint-*.safetensors"


def save_checkpoint(folder: Path, step: int, tree: Any, commits: frozenset[str] = frozenset()) -> None:
    """Write the tree as it is after `step` steps of these commits' code, then remove what it supersedes."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    file = folder / f"checkpoint-{step:09d}.safetensors"
    arrays = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
    atomic.write_bytes(file, save(arrays, metadata={"commits": " ".join(sorted(commits))}))
    for other in folder.glob(_PATTERN):
        if other.name < file.name:  # another process may be further
            other.unlink(missing_ok=True)


def load_checkpoint(folder: Path, like: Any) -> tuple[int, Any, frozenset[str]]:
    """Return the steps made, the tree, shaped as `like`, and the commits of the newest checkpoint.

    Without one they are 0, `like` itself, and none.

    Raises:
        ValueError: if the file is damaged or holds another tree.
    """
    newest = max(folder.glob(_PATTERN), default=None)
    if newest is None:
        return 0, like, frozenset()
    try:
        with safe_open(newest, framework="numpy") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            commits = frozenset((file.metadata() or {}).get("commits", "").split())
    except SafetensorError as error:
        raise ValueError(f"{newest} is not a checkpoint ({error}); delete it to train again") from error
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    expected = {jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves}
    if expected != {name: array.shape for name, array in stored.items()}:
        raise ValueError(f"{newest} holds the state of another training; delete it, or choose another --out")
    restored = [jax.numpy.asarray(stored[name]) for name in expected]
    step = int(newest.stem.removeprefix("checkpoint-"))
    return step, jax.tree_util.tree_unflatten(structure, restored), commits
