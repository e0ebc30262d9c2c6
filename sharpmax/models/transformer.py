"""A small causal Transformer whose attention is any policy's, several seeds of it side by side in one program.

    x -> x + attention(norm(x)) -> x + mlp(norm(x))         pre-norm, GELU, four times as wide inside

Half of the heads know no positions; the other half prefer near keys by ALiBi (Press et al., arXiv 2108.12409): a slope
m per head, `logit - m·(i - j)`. Softmax does not see what is the same for a whole row, so `+ m·j` is as good, and that
is one more feature of the key: no matrix of length × length is ever made, at any length.

Every weight has a leading axis of seeds. Seeds share nothing but the launches of the kernels.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sharpmax.core.policies import Policy
from sharpmax.extras import extra
from sharpmax.torch import attention

with extra("torch"):
    import torch
    from torch import Tensor
    from torch.nn import functional

Params = dict[str, Tensor]
POSITION_FEATURES = 8  # the feature of position, and zeros: fast kernels want widths that are multiples of 8


@dataclass(frozen=True)
class Transformer:
    """The shape of the model. Parameters are a dictionary of tensors, made by `init` and given to every call."""

    vocabulary: int
    layers: int = 4
    width: int = 256
    heads: int = 8

    def __post_init__(self) -> None:
        if self.width % self.heads or self.heads % 2:
            raise ValueError(f"expected an even number of heads that divides the width, got {self.heads}, {self.width}")

    @property
    def parameters(self) -> int:
        """How many numbers one seed learns."""
        return sum(tensor[0].numel() for tensor in self.init([0]).values())

    def init(self, seeds: list[int], device: Any = "cpu") -> Params:
        """Return parameters (seeds, …): each seed's are its own draw, whichever others stand beside it."""
        drawn = [self._one_seed(seed) for seed in seeds]
        return {name: torch.stack([one[name] for one in drawn]).to(device) for name in drawn[0]}

    def _one_seed(self, seed: int) -> Params:
        generator = torch.Generator().manual_seed(seed)
        d = self.width

        def normal(*shape: int, std: float) -> Tensor:
            return torch.randn(shape, generator=generator) * std

        params = {"embedding": normal(self.vocabulary, d, std=1.0)}
        for layer in range(self.layers):
            of = f"layers.{layer}."
            params |= {
                f"{of}attention.norm": torch.ones(d),
                f"{of}attention.qkv": normal(d, 3 * d, std=d**-0.5),
                # What a layer adds begins small, so that the sum of many does not grow with depth.
                f"{of}attention.out": normal(d, d, std=(2 * self.layers * d) ** -0.5),
                f"{of}mlp.norm": torch.ones(d),
                f"{of}mlp.up": normal(d, 4 * d, std=d**-0.5),
                f"{of}mlp.down": normal(4 * d, d, std=(2 * self.layers * 4 * d) ** -0.5),
            }
        return params | {"norm": torch.ones(d), "unembedding": normal(d, self.vocabulary, std=d**-0.5)}

    def __call__(
        self,
        params: Mapping[str, Tensor],
        tokens: Tensor,
        policy: Callable[[int], Policy],
        *,
        at: Tensor | None = None,
        implementation: str | None = None,
        observer: Callable[[int, Any], None] | None = None,
    ) -> Tensor:
        """Return logits (seeds, batch, length, vocabulary) of tokens (seeds, batch, length).

        Args:
            policy: of a layer, by its index.
            at: the places (n,) to return logits of; all unless given.
            observer: gets a layer's index and its row statistics (seeds·batch, heads, length).
        """
        seeds, batch, length = tokens.shape
        of_seed = torch.arange(seeds, device=tokens.device)[:, None]
        x = params["embedding"][of_seed, tokens.flatten(1)]
        for layer in range(self.layers):
            of = f"layers.{layer}."
            weights = {name.removeprefix(of): w for name, w in params.items() if name.startswith(of)}
            x = x + self._attend(weights, x, (seeds, batch, length), layer, policy(layer), implementation, observer)
            inner = functional.gelu(_norm(x, weights["mlp.norm"]) @ weights["mlp.up"])
            x = x + inner @ weights["mlp.down"]
        x = _norm(x, params["norm"]).view(seeds, batch, length, self.width)
        if at is not None:
            x = x[:, :, at]
        logits: Tensor = x.flatten(1, 2) @ params["unembedding"]
        return logits.view(seeds, batch, -1, self.vocabulary)

    def _attend(
        self,
        weights: Params,
        x: Tensor,
        shape: tuple[int, int, int],
        layer: int,
        policy: Policy,
        implementation: str | None,
        observer: Callable[[int, Any], None] | None,
    ) -> Tensor:
        seeds, batch, length = shape
        width = self.width // self.heads
        qkv = _norm(x, weights["attention.norm"]) @ weights["attention.qkv"]
        q, k, v = qkv.view(seeds * batch, length, 3, self.heads, width).permute(2, 0, 3, 1, 4)
        scale = width**-0.5
        q, k = self._with_positions(q, k, scale)
        asked: dict[str, Any] = {"policy": policy, "is_causal": True, "scale": scale, "implementation": implementation}
        if observer is None:
            out = attention(q, k, v, **asked)
        else:
            out, stats = attention(q, k, v, **asked, return_stats=True)
            observer(layer, stats)
        out = out.transpose(1, 2).reshape(seeds, batch * length, self.width)
        product: Tensor = out @ weights["attention.out"]
        return product

    def _with_positions(self, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Return queries and keys with the feature of position: 1/scale in a query, m·j in a key."""
        rows, heads, length, _ = q.shape
        half = heads // 2
        # Slopes 1/4, 1/16, … for four heads, as ALiBi has them; 0 for heads without positions.
        slopes = torch.tensor([0.0] * (heads - half) + [2.0 ** (-8 * (i + 1) / half) for i in range(half)])
        places = torch.arange(length, device=q.device, dtype=q.dtype)
        bias = slopes.to(q)[:, None] * places
        zeros = q.new_zeros((rows, heads, length, POSITION_FEATURES - 1))
        of_query = q.new_full((rows, heads, length, 1), 1.0 / scale)
        of_key = bias[None, :, :, None].expand(rows, heads, length, 1)
        return torch.cat((q, of_query, zeros), dim=3), torch.cat((k, of_key, zeros), dim=3)


def loss_of(logits: Tensor, answers: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats of each seed, (seeds,)."""
    each = functional.cross_entropy(logits.flatten(0, 2), answers.flatten(), reduction="none")
    return each.view(answers.shape).mean(dim=(1, 2))


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Inside this block PyTorch multiplies float32 matrices in that precision: "highest", or "high" for TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    """Root mean square normalisation, each seed with its own gains."""
    return functional.rms_norm(x, (x.shape[-1],)) * weight[:, None]
