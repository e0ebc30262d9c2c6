"""A small causal Transformer with any mechanism in its attention, several seeds of it side by side in one program.

    x -> x + attention(norm(x)) -> x + mlp(norm(x))         pre-norm, GELU, four times as wide inside

Half of the heads know no positions; the other half prefer near keys by ALiBi (Press et al., arXiv 2108.12409): a slope
m per head, `logit - m·(i - j)`. Or all heads turn queries and keys by their positions (RoPE, arXiv 2104.09864), which
are random and increasing, so that a short sequence has seen positions of long ones (Ruoss et al., arXiv 2305.16843).
Or all three: a quarter of the heads without positions, a quarter that turn by random ones, and half with ALiBi.

All parameters of a seed are one row of a matrix (seeds, parameters), of which every weight is a view. So an optimiser
step is one elementwise pass. Seeds share nothing but the launches of the kernels.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import pi, prod
from typing import Any, NamedTuple

from sharpmax.extras import extra
from sharpmax.models.mechanisms import Mechanism, Sharpened

with extra("torch"):
    import torch
    from torch import Tensor
    from torch.nn import functional

Params = Mapping[str, Tensor]
WATCHED = 16  # the last queries of a sequence, whose weights an observer is told of
POSITIONS = ("half", "alibi", "none", "rope", "sorted")
FARTHEST = 2.0**15  # random positions of "rope" lie below this
SORTED_BELOW = 512  # random positions of "sorted" are whole numbers below this
LONGEST_ROW = 192  # tokens that a row of "sorted" positions is drawn for, at most
BASE = 10_000.0  # of RoPE's wavelengths
OCTAVES = 9  # of waves that a number's embedding begins with: the finest tells neighbours among 2,000
OWN = 0.1  # what is a number's own in its first embedding, beside what it shares with its neighbours


class Precision(NamedTuple):
    """What products are multiplied in. Weights, sums, norms and softmax are always float32."""

    products: torch.dtype
    """Of activations with weights."""
    streamed: torch.dtype
    """Of queries with keys, and of weights with values, in streaming attention; dense attention is float32."""
    float32: str
    """How float32 is multiplied: "highest", or "high" for TF32 where there is a GPU."""


PRECISIONS = {
    "float32": Precision(torch.float32, torch.float32, "highest"),
    "tf32": Precision(torch.float32, torch.float16, "high"),  # both have 10 bits
    "bf16": Precision(torch.bfloat16, torch.float16, "high"),
}


@dataclass(frozen=True)
class Transformer:
    """The shape of the model and its mechanism. Parameters are made by `init` and given to every call.

    Attributes:
        positions: "half" of the heads with ALiBi, "alibi" in all, "none", "rope" at random positions, or "sorted": a
            quarter of the heads with "none", a quarter with RoPE at random whole positions, and half with ALiBi.
        numbers: how many of the first tokens are numbers in order. Their embeddings begin as smooth functions of the
            order, and every token is read as it is written: what a model would have to learn first.
    """

    vocabulary: int
    layers: int = 4
    width: int = 256
    heads: int = 8
    positions: str = "half"
    mechanism: Mechanism = field(default_factory=Sharpened)
    numbers: int = 0

    def __post_init__(self) -> None:
        if self.heads < 2 or self.width < 1 or self.width % self.heads or self.heads % 2:
            raise ValueError(f"expected an even number of heads that divides the width, got {self.heads}, {self.width}")
        if self.positions not in POSITIONS:
            raise ValueError(f"expected positions among {', '.join(POSITIONS)}, got {self.positions!r}")
        if self.turns and self.width // self.heads % 2:
            raise ValueError(f"expected an even width per head to turn, got {self.width} for {self.heads} heads")
        if not 0 <= self.numbers <= self.vocabulary:
            raise ValueError(f"expected numbers among the {self.vocabulary} tokens, got {self.numbers}")

    @property
    def parameters(self) -> int:
        """How many numbers one seed learns."""
        return sum(prod(shape) for shape in self._shapes.values())

    def init(self, seeds: list[int], device: Any = "cpu") -> Tensor:
        """Return parameters (seeds, parameters): each seed's are its own draw, whichever others stand beside it."""
        rows = [torch.cat([tensor.flatten() for tensor in self._one_seed(seed).values()]) for seed in seeds]
        return torch.stack(rows).to(device)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views (seeds, …) of the parameters by name."""
        parts = torch.split(flat, [prod(shape) for shape in self._shapes.values()], dim=1)
        return {name: part.view(-1, *shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}

    def _one_seed(self, seed: int) -> dict[str, Tensor]:
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
        params |= {"norm": torch.ones(d), "unembedding": normal(d, self.vocabulary, std=d**-0.5)}
        if self.numbers:
            waves = _waves(self.numbers)
            smooth = waves @ normal(waves.shape[1], d, std=1.0)
            params["embedding"][: self.numbers] *= OWN
            params["embedding"][: self.numbers] += smooth
            params["unembedding"] = params["embedding"].T * d**-0.5
        # After all draws, so that every mechanism begins with the same weights.
        for layer in range(self.layers):
            starts = self.mechanism.starts(self.heads, self.width // self.heads, layer)
            params |= {f"layers.{layer}.mechanism.{name}": start for name, start in starts.items()}
        return params

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._one_seed(0).items()}

    @cached_property
    def slopes(self) -> Tensor:
        """ALiBi's slope of each head, on the CPU: 1/4, 1/16, … for four heads, 0 for heads without positions."""
        biased = {"half": self.heads // 2, "sorted": self.heads // 2, "alibi": self.heads}.get(self.positions, 0)
        # Whole powers of two, so that half precision holds a slope times a position exactly.
        powers = [-round(8 * (i + 1) / biased) for i in range(biased)]
        return torch.tensor([0.0] * (self.heads - biased) + [2.0**power for power in powers])

    @property
    def turns(self) -> bool:
        """Whether any head turns queries and keys by their positions."""
        return self.positions in ("rope", "sorted")

    def places(self, tokens: Tensor, seed: int) -> Tensor | None:
        """Draw increasing positions for tokens (seeds, batch, length), the same for all seeds; None without RoPE."""
        if not self.turns:
            return None
        if self.positions == "sorted":
            return _sorted_places(tokens, seed)
        generator = torch.Generator(device=tokens.device).manual_seed(seed)
        _, batch, length = tokens.shape
        gaps = torch.rand((1, batch, length + 1), generator=generator, device=tokens.device, dtype=torch.float64)
        reached = gaps.cumsum(-1)
        return (FARTHEST * reached[..., :-1] / reached[..., -1:]).float().expand(tokens.shape)

    def __call__(
        self,
        params: Params,
        tokens: Tensor,
        *,
        at: Tensor | None = None,
        places: Tensor | None = None,
        precision: Precision = PRECISIONS["float32"],
        block: Callable[..., Tensor] | None = None,
        streaming: bool = True,
        observer: Callable[[int, Tensor], None] | None = None,
    ) -> Tensor:
        """Return logits (seeds, batch, length, vocabulary) of tokens (seeds, batch, length).

        Args:
            params: by name, as `named` returns them.
            at: the places (seeds, batch, …) to return logits of, (seeds, batch, …, vocabulary); all unless given.
            places: positions (seeds, batch, length) for "rope" and "sorted", as `self.places` draws them.
            block: `self.block`, compiled; itself unless given.
            streaming: whether attention goes in blocks, without a gradient, or by all weights at once, as in training.
            observer: gets a layer's index and the entropy of its weights, (seeds, batch, heads, last queries).
        """
        if self.turns != (places is not None):
            raise ValueError(
                f"positions={self.positions!r} and places do not fit: 'rope' needs them, and 'sorted'; others have none"
            )
        block = block or self.block
        # Positions that all seeds share are turned into angles once.
        turn = None if places is None else self._turn(places[:1] if places.stride(0) == 0 else places)
        slopes = self.slopes.to(tokens.device, non_blocking=True)
        seeds, _, length = tokens.shape
        ids = tokens + self.vocabulary * torch.arange(seeds, device=tokens.device)[:, None, None]
        x = functional.embedding(ids, params["embedding"].flatten(0, 1))
        # In the last layer only those places matter that are asked for; in streaming they stand at the end.
        first = 0 if at is None or not streaming or self.mechanism.needs_every_query else int(at.min())
        for layer in range(self.layers):
            of = f"layers.{layer}."
            weights = {name.removeprefix(of): w for name, w in params.items() if name.startswith(of)}
            watch = None if observer is None else partial(observer, layer)
            queries = length - first if layer == self.layers - 1 else length
            x = block(weights, x, slopes, turn, queries, precision, streaming, watch)
        if at is not None:
            x = x.take_along_dim(at.flatten(2)[..., None] - (length - x.shape[2]), dim=2)
        logits = _linear(_norm(x, params["norm"]), params["unembedding"], precision)
        return logits.float().view(*(tokens.shape if at is None else at.shape), self.vocabulary)

    def block(
        self,
        weights: Params,
        x: Tensor,
        slopes: Tensor,
        turn: Tensor | None,
        queries: int,
        precision: Precision,
        streaming: bool,
        watch: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        """Return x (seeds, batch, queries, width) after one layer, of the last `queries` places."""
        seeds, batch, length, _width = x.shape
        learned = {n.removeprefix("mechanism."): w for n, w in weights.items() if n.startswith("mechanism.")}
        qkv = _linear(_norm(x, weights["attention.norm"]), weights["attention.qkv"], precision)
        q, k, v = qkv.view(seeds, batch, length, 3, self.heads, -1).permute(3, 0, 1, 4, 2, 5)
        if turn is not None:
            q, k = (_turned(part, turn) for part in (q, k))
        q = q[..., length - queries :, :]
        if streaming:
            out = self.mechanism.stream(q, k, v, slopes, learned, precision.streamed)
        else:
            out = self.mechanism.learn(q, k, v, slopes, learned)
        if watch is not None:
            watched = q if self.mechanism.needs_every_query else q[..., -WATCHED:, :]
            watch(self._entropy(watched, k, slopes, learned)[..., -WATCHED:])
        x = x[:, :, length - queries :]
        x = x + _linear(out.transpose(2, 3).flatten(3), weights["attention.out"], precision)
        inner = functional.gelu(_linear(_norm(x, weights["mlp.norm"]), weights["mlp.up"], precision))
        return x + _linear(inner, weights["mlp.down"], precision)

    def _turn(self, places: Tensor) -> Tensor:
        """Return the turn of each position and pair of features, as complex numbers' parts (2, …, length, pairs)."""
        pairs = self.width // self.heads // 2
        wavelength = BASE ** (torch.arange(pairs, device=places.device) / pairs)
        angle = places[:, :, None, :, None] / wavelength
        if self.positions == "sorted":
            turned = torch.arange(self.heads, device=places.device).unsqueeze(1).unsqueeze(1)
            angle = angle * ((turned >= self.heads // 4) & (turned < self.heads // 2))
        return torch.stack((angle.cos(), angle.sin()))

    def _entropy(self, q: Tensor, k: Tensor, slopes: Tensor, learned: Params) -> Tensor:
        """Return the entropy in nats of each row's weights, as shares of their sum."""
        weights = self.mechanism.weights(q, k, slopes, learned).clamp(min=0)
        shares = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
        entropy: Tensor = torch.special.entr(shares).sum(-1)
        return entropy


def _waves(count: int) -> Tensor:
    """Return smooth functions of the order of `count` numbers, (count, functions), of unit length together."""
    phase = torch.linspace(-1.0, 1.0, count)[:, None] * (pi / 2 * 2.0 ** torch.arange(OCTAVES))
    loudness = 2.0 ** (-0.5 * torch.arange(OCTAVES))
    waves: Tensor = torch.cat((phase.sin() * loudness, phase.cos() * loudness), dim=1) / loudness.norm()
    return waves


def _sorted_places(tokens: Tensor, seed: int) -> Tensor:
    """Draw different whole positions in order: those of the beginning of a row of random length.

    How long that row is says how dense positions are, and nothing of the tokens. A longer row begins with other
    positions, but one that is cut off keeps those it had.
    """
    _, batch, length = tokens.shape
    if length > LONGEST_ROW:
        raise ValueError(f"expected at most {LONGEST_ROW} tokens for positions='sorted', got {length}")
    generator = torch.Generator(device=tokens.device).manual_seed(seed)
    draws = torch.rand((batch, SORTED_BELOW), generator=generator, device=tokens.device)
    row = torch.randint(length, LONGEST_ROW + 1, (batch, 1), generator=generator, device=tokens.device)
    # The `row` positions of the smallest draws, in order of position.
    taken = draws <= draws.sort(1).values.gather(1, row - 1)
    place = torch.arange(SORTED_BELOW, device=tokens.device)
    places = torch.where(taken, place, SORTED_BELOW).sort(1).values[:, :length]
    return places.float().expand(tokens.shape)


def loss_of(logits: Tensor, answers: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the cross-entropy in nats of each seed, (seeds,); answers are (seeds, …): its mean, or weighted sum."""
    each = functional.cross_entropy(logits.flatten(0, -2), answers.flatten(), reduction="none")
    each = each.view(len(answers), -1)
    return each.mean(1) if weights is None else (each * weights.flatten(1)).sum(1)


@contextmanager
def float32_products(how: str) -> Iterator[None]:
    """Inside this block PyTorch multiplies float32 matrices that way: "highest", or "high" for TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(how)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _linear(x: Tensor, weight: Tensor, precision: Precision) -> Tensor:
    """Multiply x (seeds, batch, length, a) with each seed's own weight (seeds, a, b)."""
    product = x.flatten(1, 2).to(precision.products) @ weight.to(precision.products)
    return product.view(*x.shape[:-1], weight.shape[-1])


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    """Turn pairs of features, the first half with the second."""
    cos, sin = turn.to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    """Root mean square normalisation in float32, each seed with its own gains."""
    return functional.rms_norm(x, (x.shape[-1],)) * weight[:, None, None]
