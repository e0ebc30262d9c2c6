"""A small Transformer with our slot in it, as the tests of watching train it."""

import torch
from torch import nn

from sharpmax.torch import WatchedAttention


class Block(nn.Module):
    """Attention of 4 heads on 4 or 2 key heads, of width 8."""

    def __init__(self, key_heads=4, bias=False):
        super().__init__()
        self.q_proj = nn.Linear(32, 32, bias=bias)
        self.k_proj = nn.Linear(32, 8 * key_heads, bias=bias)
        self.v_proj = nn.Linear(32, 8 * key_heads, bias=bias)
        self.out = nn.Linear(32, 32, bias=False)
        self.attend = WatchedAttention()

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (-1, 8)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        return x + self.out(self.attend(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def model(layers=2, seed=0, **options):
    torch.manual_seed(seed)
    return nn.Sequential(*(Block(**options) for _ in range(layers)))


def batch(seed=0, rows=4, length=12):
    return torch.randn(rows, length, 32, generator=torch.Generator().manual_seed(seed))


def train(net, steps, after=lambda loss: None, first=0, rate=0.1):
    """Train from a step to another; `after` gets each step's loss. Returns the losses."""
    optimizer = torch.optim.SGD(net.parameters(), rate)
    losses = []
    for step in range(first, steps):
        loss = net(batch(step)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(loss.detach())
        losses.append(float(loss.detach()))
    return losses
