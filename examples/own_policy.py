"""Write a policy of your own, check what it does, save it as a card, and use it in three libraries. Some seconds.

The policy sharpens a row by how evenly it is spread: beta = 1 + strength·H/log n.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import torch
from array_api_compat import array_namespace

import sharpmax


@dataclass(frozen=True, eq=False)
class Spread(sharpmax.Policy):
    """Give beta = 1 + strength·H/log n, between 1 and 1 + strength."""

    strength: float = 0.5

    @property
    def needs(self):
        """Name the statistics that it reads."""
        return frozenset({"entropy", "count"})

    def __call__(self, stats, stats_at=None):
        """Return beta for each row."""
        xp = array_namespace(stats.entropy)
        return 1 + self.strength * stats.entropy / xp.log(xp.clip(stats.count, 2.0))


def main():
    """Print beta and the largest weight of an even row and of one with a leader, in each library."""
    rows = np.zeros((2, 64), dtype=np.float32)
    rows[1, 0] = 6.0
    for name, array in (("NumPy", rows), ("PyTorch", torch.tensor(rows)), ("JAX", jnp.asarray(rows))):
        weights, stats = sharpmax.softmax(array, Spread(), return_stats=True)
        beta = [round(float(b), 3) for b in stats.inverse_temperature]
        print(f"{name:8} beta {beta}, largest weight of the second row {float(weights[1].max()):.3f}")
    with tempfile.TemporaryDirectory() as folder:
        card = Path(folder) / "spread.json"
        Spread(0.3).save(card, notes="an example")
        print("from its card:", sharpmax.load_policy(card))


if __name__ == "__main__":
    main()
