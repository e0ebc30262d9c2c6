"""Needles among near-duplicates: four keys are asked for, and every other key differs from one of them by one token.

    k k v v   k k v v   …   mark   k k v v   k k v v   …

As recall, but nothing can be told apart by half a key. A needle's value stands once; duplicates may repeat.
"""

from sharpmax.extras import extra
from sharpmax.tasks.recall import SYMBOLS, VALUES, Recall
from sharpmax.tasks.sized import Batch, check_sizes, distinct, draw_sizes

with extra("torch"):
    import torch


class Needle(Recall):
    """Name the values of four needles among `size` pairs."""

    name = "needle"
    asked = (14, 64, 256, 1024, 2048)
    sharpness = "helps: a half-matching key comes close, and there are ever more of them"

    def draw(self, batch: int, sizes: tuple[int, int], *, generator: "torch.Generator") -> Batch:
        """Draw needles at random places, and near-duplicates of them everywhere else."""
        check_sizes(sizes, self.questions, 2**20, "pairs")
        device, most = generator.device, sizes[1]
        # Needles share no token, so that a near-duplicate of one is none of the others.
        needles = torch.stack([distinct(batch, self.questions, SYMBOLS, generator) for _ in range(2)], dim=2)
        of = torch.randint(self.questions, (batch, most), generator=generator, device=device)
        keys = needles.gather(1, of[:, :, None].expand(batch, most, 2))
        changed = torch.randint(2, (batch, most, 1), generator=generator, device=device)
        apart = torch.randint(1, SYMBOLS, (batch, most, 1), generator=generator, device=device)
        keys = torch.where(torch.arange(2, device=device) == changed, (keys + apart) % SYMBOLS, keys)
        size = draw_sizes(batch, sizes, generator)
        places = distinct(batch, self.questions, most, generator, below=size)
        keys = keys.scatter(1, places[:, :, None].expand(batch, self.questions, 2), needles)
        values = SYMBOLS + torch.randint(VALUES, (batch, most, 2), generator=generator, device=device)
        return self.asking(torch.cat((keys, values), dim=2), size, places)
