"""A small causal Transformer whose attention can be watched and clipped: no norm on queries and keys.

x -> x + attention(norm(x)) -> x + mlp(norm(x))         pre-norm, positions learned
"""

from sharpmax.extras import extra

with extra("torch"):
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

    from sharpmax.torch import WatchedAttention


class Attention(nn.Module):
    """Plain multi-head attention with our slot in it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.attend = WatchedAttention()

    def forward(self, x: "Tensor") -> "Tensor":
        """Attend causally, (batch, length, width)."""
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (project(x).view(shape).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj))
        output: Tensor = self.attend(q, k, v, is_causal=True)
        mixed: Tensor = self.out(output.transpose(1, 2).reshape(batch, length, width))
        return mixed


class Block(nn.Module):
    """Attention, then an MLP of four times the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])

    def forward(self, x: "Tensor") -> "Tensor":
        """Return x after the block."""
        x = x + self.attention(self.norms[0](x))
        changed: Tensor = x + self.down(functional.gelu(self.up(self.norms[1](x))))
        return changed


class SmallTransformer(nn.Module):
    """Tokens (batch, length) to logits (batch, length, vocabulary)."""

    def __init__(self, vocabulary: int, length: int, *, layers: int = 2, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.unembedding = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: "Tensor") -> "Tensor":
        """Return the logits of the next token at every place."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.unembedding(self.norm(x))
        return logits
