"""Use attention with row statistics in a model of your own: a PyTorch module and a JAX function. Some seconds.

Both watch the mean entropy of their rows while they train, and their gradients go through the temperature.
"""

import jax
import jax.numpy as jnp
import torch
from torch import nn

import sharpmax
import sharpmax.jax
import sharpmax.torch


class Attention(nn.Module):
    """Causal self-attention (batch, length, width) -> the same, and the mean entropy of each head in nats."""

    def __init__(self, width, heads, policy):
        super().__init__()
        self.heads, self.policy = heads, policy
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        """Attend, and return the output with the entropies (heads,)."""
        query, key, value = (y.unflatten(2, (self.heads, -1)).transpose(1, 2) for y in self.project(x).chunk(3, dim=2))
        output, stats = sharpmax.torch.attention(
            query, key, value, is_causal=True, policy=self.policy, return_stats=True
        )
        return self.out(output.transpose(1, 2).flatten(2)), stats.entropy.mean(dim=(0, 2))


def in_pytorch():
    """Train the module to repeat the token before; print the loss and the entropies at the ends."""
    torch.manual_seed(0)
    layer = Attention(32, 2, sharpmax.PAPER)
    optimiser = torch.optim.Adam(layer.parameters(), lr=1e-2)
    x = torch.randn(8, 24, 32)
    for step in range(60):
        output, entropies = layer(x)
        loss = (output[:, 1:] - x[:, :-1]).square().mean()
        if step in (0, 59):
            print(f"PyTorch step {step:2}: loss {loss.item():.2f}, mean entropy {entropies.mean().item():.2f} nats")
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def in_jax():
    """Learn the slope of a length-scaled policy, where each query should find its own key; print it at the ends."""
    query, value = jax.random.normal(jax.random.key(0), (2, 1, 48, 2, 16))

    @jax.jit
    def loss_of(slope):
        policy = sharpmax.LengthScaled.ssmax(slope)
        output, stats = sharpmax.jax.attention(query, query, value, policy=policy, return_stats=True)
        return jnp.mean((output - value) ** 2), stats.entropy.mean()

    slope = jnp.array(0.3)
    for step in range(30):
        (loss, entropy), gradient = jax.value_and_grad(loss_of, has_aux=True)(slope)
        if step in (0, 29):
            told = f"slope {slope:.2f}, loss {loss:.2f}, mean entropy before sharpening {entropy:.2f} nats"
            print(f"JAX step {step:2}: {told}")
        slope = slope - 0.5 * gradient


def main():
    """Run both."""
    in_pytorch()
    in_jax()


if __name__ == "__main__":
    main()
