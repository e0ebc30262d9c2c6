"""Train a small Transformer to look a key up among 8 pairs, then ask it among 800. Half a minute on one CPU core.

Each position holds a pair: the embedding of its key plus that of its value. The last position holds a key alone, and
the model must name its value. Training uses plain softmax. At inference the same weights are asked with three rules.
"""

import torch
from torch import nn
from torch.nn import functional

import sharpmax
from sharpmax.torch import attention

KEYS, VALUES, WIDTH, TRAINED = 2048, 64, 128, 8


class Block(nn.Module):
    """One Transformer block with two heads whose attention takes any policy."""

    def __init__(self):
        super().__init__()
        self.before = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, pairs, asked, policy):
        """Attend from the key that is asked (batch, 1, width) to the pairs (batch, n, width)."""
        seen, asking = self.before(pairs), self.before(asked)
        heads = [
            x.unflatten(2, (2, -1)).transpose(1, 2) for x in (self.query(asking), self.key(seen), self.value(seen))
        ]
        found = attention(*heads, policy=policy).transpose(1, 2).flatten(2)
        after = asked + self.out(found)
        return after + self.mlp(after)


class Recall(nn.Module):
    """Name the value of a key among pairs."""

    def __init__(self):
        super().__init__()
        self.keys, self.values = nn.Embedding(KEYS, WIDTH), nn.Embedding(VALUES, WIDTH)
        self.block, self.read = Block(), nn.Linear(WIDTH, VALUES)

    def forward(self, keys, values, asked, policy):
        """Return logits (batch, values) for keys and values (batch, n) and the asked key (batch,)."""
        pairs = self.keys(keys) + self.values(values)
        return self.read(self.block(pairs, self.keys(asked)[:, None], policy)[:, 0])


def draw(batch, size, generator):
    """Draw pairs without a repeated key, and ask for one of them."""
    keys = torch.rand(batch, KEYS, generator=generator).topk(size, dim=1).indices
    values = torch.randint(VALUES, (batch, size), generator=generator)
    place = torch.randint(size, (batch, 1), generator=generator)
    return keys, values, keys.gather(1, place)[:, 0], values.gather(1, place)[:, 0]


def main():
    """Train, then ask at 1, 10 and 100 times the trained size."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model, plain = Recall(), sharpmax.Constant(1.0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    for step in range(1500):
        optimiser.param_groups[0]["lr"] = 2e-3 * min(1, (1500 - step) / 500)
        keys, values, asked, answer = draw(256, TRAINED, generator)
        loss = functional.cross_entropy(model(keys, values, asked, plain), answer)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    rules = {
        "softmax": plain,
        "log n / log 8, at inference": sharpmax.LengthScaled.log_n(TRAINED),
        "EntropyTarget(0.5), at inference": sharpmax.EntropyTarget(0.5),
    }
    sizes = (TRAINED, 10 * TRAINED, 100 * TRAINED)
    print(f"{'right answers, %':34}", *(f"{size:>6}" for size in sizes))
    with torch.no_grad():
        for name, rule in rules.items():
            right = []
            for size in sizes:
                keys, values, asked, answer = draw(512, size, torch.Generator().manual_seed(2))
                right.append((model(keys, values, asked, rule).argmax(1) == answer).float().mean().item())
            print(f"{name:34}", *(f"{100 * share:6.1f}" for share in right))


if __name__ == "__main__":
    main()
