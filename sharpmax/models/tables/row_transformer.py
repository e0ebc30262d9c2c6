"""A Transformer that classifies the rows of a table by attending to rows whose class is known.

    h_i = W_x x_i + W_y y_i + b        for known rows;      h_i = W_x x_i + b       for asked rows
    h <- norm(h + attention(h, h_known, h_known));   h <- norm(h + mlp(h))          twelve times

Every row, known or asked, attends to the known rows only, so n is the number of known rows, and asked rows do not see
one another. There are no positions. Hollmann et al., "TabPFN", arXiv 2207.01848; the implementation is our own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from sharpmax.core.policies import Constant, Policy
from sharpmax.extras import extra

with extra("torch"):
    import torch
    from torch import Tensor
    from torch.nn import functional

    from sharpmax.torch import attention

Observer = Callable[[int, "Tensor", "Tensor"], None]
PLAIN = Constant(1.0)


@dataclass(frozen=True)
class RowTransformer:
    """The model: its weights by the names of TabPFN's checkpoint, and its number of heads.

    >>> model.predict(features, classes, policy=LengthScaled.log_n(1024))     # doctest: +SKIP
    """

    weights: Mapping[str, Tensor]
    heads: int

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return 1 + max(int(name.split(".")[2]) for name in self.weights if name.startswith("transformer_encoder."))

    @property
    def features(self) -> int:
        """How many columns a row has; narrower tables are filled up with zeros."""
        return self.weights["encoder.weight"].shape[1]

    @property
    def classes(self) -> int:
        """How many classes it can tell apart."""
        return self.weights["decoder.2.weight"].shape[0]

    def __call__(
        self,
        rows: Tensor,
        known: Tensor,
        *,
        policy: Policy = PLAIN,
        observer: Observer | None = None,
    ) -> Tensor:
        """Return logits (asked, classes) of the rows behind the known ones.

        Args:
            rows: (known + asked, features), normalised as the model expects (`normalised`).
            known: the classes (known,) of the first rows, as numbers from 0.
            policy: of every head; `PerLayer` gives each layer its own.
            observer: is told each layer's index, the queries (1, heads, asked, width) of the asked rows, and the keys
                (1, heads, known, width) of the known ones, before the policy.

        Raises:
            ValueError: tables that do not fit the model, or without a known or an asked row.
        """
        n = len(known)
        if rows.ndim != 2 or rows.shape[1] != self.features or not 0 < n < len(rows):
            raise ValueError(
                f"expected rows (known + asked, {self.features}) and at least one of each, got {tuple(rows.shape)}, "
                f"of which {n} are known"
            )
        h = self._linear("encoder", rows)
        h = torch.cat([h[:n] + self._linear("y_encoder", known[:, None].to(h.dtype)), h[n:]])
        for layer in range(self.layers):
            of = f"transformer_encoder.layers.{layer}."
            watch = None if observer is None else partial(observer, layer)
            h = self._norm(of + "norm1", h + self._attention(of + "self_attn", h, n, policy.for_layer(layer), watch))
            h = self._norm(of + "norm2", h + self._mlp(of + "linear1", of + "linear2", h))
        return self._mlp("decoder.0", "decoder.2", h[n:])

    def _attention(
        self, of: str, h: Tensor, n: int, policy: Policy, watch: "Callable[[Tensor, Tensor], None] | None"
    ) -> Tensor:
        weight, bias = self.weights[of + ".in_proj_weight"], self.weights[of + ".in_proj_bias"]
        width = h.shape[1]
        q = functional.linear(h, weight[:width], bias[:width])
        k, v = functional.linear(h[:n], weight[width:], bias[width:]).chunk(2, dim=-1)
        q, k, v = (x.view(1, len(x), self.heads, -1).transpose(1, 2) for x in (q, k, v))
        if watch is not None:
            watch(q[:, :, n:], k)
        mixed = attention(q, k.contiguous(), v.contiguous(), policy=policy)
        return self._linear(of + ".out_proj", mixed[0].transpose(0, 1).reshape(h.shape))

    def _mlp(self, first: str, second: str, h: Tensor) -> Tensor:
        return self._linear(second, functional.gelu(self._linear(first, h)))

    def _linear(self, name: str, h: Tensor) -> Tensor:
        return functional.linear(h, self.weights[name + ".weight"], self.weights[name + ".bias"])

    def _norm(self, name: str, h: Tensor) -> Tensor:
        return functional.layer_norm(h, h.shape[-1:], self.weights[name + ".weight"], self.weights[name + ".bias"])
