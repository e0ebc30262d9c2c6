"""The max-retrieval head with another normaliser than softmax, a temperature that it learns, or other scores.

`max_retrieval` folds all that is linear out of the work per item, and leaves out what softmax cannot see: a number that
is added to all logits of a set, and that weights may sum to something else than 1. Here both count:

    e_i = g_i · r(q) + c(q),   c(q) = b2 · Kᵀ Q h_q          Σ w_i h_i = W2ᵀ Σ w_i g_i + b2 Σ w_i

`scores="kernel"` is linear attention's, phi(Q h_q) · phi(K h_i) with phi = elu + 1. It is not linear in the item, so
the keys are computed for each. `scores="difference"` is differential attention: two products, each with its own Q and
K, and the weights of one minus a learned share of the other's.
"""

from dataclasses import dataclass, field

from sharpmax.core.normalisers import Normaliser, Softmax
from sharpmax.core.policies import LengthScaled, Policy
from sharpmax.core.policies.base import choose
from sharpmax.core.stats import row_stats
from sharpmax.extras import extra
from sharpmax.models.max_retrieval import Head, Params

with extra("jax"):
    import jax
    import jax.numpy as jnp
    from jax import Array

SCORES = ("product", "kernel", "difference")
FIRST_SHARE = 0.2  # of differential attention, in its first layer


@dataclass(frozen=True)
class AlternativeHead(Head):
    """A head that attends otherwise.

    Attributes:
        normaliser: how logits become weights.
        policy: the inverse temperature of each row before that; None leaves it at 1.
        learns_scale: the inverse temperature is slope·log n + offset instead, both learned (SSMax).
        scores: "product", "kernel" for linear attention, or "difference" for differential attention.
    """

    normaliser: Normaliser = field(default_factory=Softmax)
    policy: Policy | None = None
    learns_scale: bool = False
    scores: str = "product"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scores not in SCORES:
            raise ValueError(f"expected scores to be one of {', '.join(SCORES)}, got {self.scores!r}")
        if self.learns_scale and self.policy is not None:
            raise ValueError("expected a policy or learns_scale, got both")

    def init(self, key: Array) -> Params:
        """Draw the parameters: those of `Head`, and where a scale is learned, one that is 1 at 16 items."""
        params = super().init(key)
        if self.learns_scale:
            params["scale"] = {"slope": jnp.asarray(1 / jnp.log(16.0)), "offset": jnp.zeros(())}
        if self.scores == "difference":
            other = super().init(jax.random.fold_in(key, 1))
            params |= {"Q_other": other["Q"], "K_other": other["K"], "share": jnp.asarray(FIRST_SHARE)}
        return params

    def learned(self, params: Params) -> dict[str, Array]:
        """Return the numbers that are learned beside the matrices, by name."""
        return {**params.get("scale", {}), **({"share": params["share"]} if "share" in params else {})}

    def attend(
        self, params: Params, items: Array, query: Array, *, visible: Array | None = None, beta: Array | float = 1.0
    ) -> tuple[Array, Array]:
        """Return the weights (sets, n), and the features (sets, n, width) that they are of."""
        features = self.item_features(params, items)

        def weigh(params: Params) -> Array:
            scores = self._by_kernel if self.scores == "kernel" else self._by_product
            logits = self._sharpened(params, beta * scores(params, features, query), visible)
            weights: Array = self.normaliser(logits, where=visible)
            return weights

        weights = weigh(params)
        if self.scores == "difference":
            other = weigh({**params, "Q": params["Q_other"], "K": params["K_other"]})
            weights = weights - params["share"] * other
        return weights, features

    def __call__(
        self, params: Params, items: Array, query: Array, *, visible: Array | None = None, beta: Array | float = 1.0
    ) -> Array:
        """Return the class scores (sets, classes)."""
        return self.answer(params, *self.attend(params, items, query, visible=visible, beta=beta))

    def answer(self, params: Params, weights: Array, features: Array) -> Array:
        """Return the class scores of the features so weighted."""
        pooled = self._product("sn,snf->sf", weights, features)
        sums_to_one = self.normaliser.sums_to_one and self.scores != "difference"
        total = 1.0 if sums_to_one else weights.sum(axis=-1)[:, None]
        if self.encoder == "mlp":
            pooled = self._product("sf,fg->sg", pooled, params["item"]["output"])
            pooled = pooled + total * params["item"]["output_bias"]
        value = self._product("sf,fg->sg", pooled, params["V"])
        return self.mlp(params["decoder"], value + total * params["V_bias"] if self.biased else value)

    def _by_product(self, params: Params, features: Array, query: Array) -> Array:
        logits = self.logits(features, self.reader(params, query))
        if self.encoder == "linear" or self.normaliser.ignores_shift:
            return logits
        asked = self._product("sk,fk->sf", self.asked(params, query), params["K"])
        return logits + self._product("sf,f->s", asked, params["item"]["output_bias"])[:, None]

    def _by_kernel(self, params: Params, features: Array, query: Array) -> Array:
        if self.encoder == "mlp":
            folded = self._product("fg,gk->fk", params["item"]["output"], params["K"])
            keys = self._product("snf,fk->snk", features, folded)
            keys = keys + self._product("g,gk->k", params["item"]["output_bias"], params["K"])
        else:
            keys = self._product("snf,fk->snk", features, params["K"])
        return self._product("snk,sk->sn", _positive(keys), _positive(self.asked(params, query)))

    def _sharpened(self, params: Params, logits: Array, visible: Array | None) -> Array:
        policy = LengthScaled(**params["scale"]) if self.learns_scale else self.policy
        if policy is None:
            return logits
        stats = row_stats(logits, where=visible, extra=("variance",))
        beta = choose(policy, stats, lambda beta: row_stats(beta[:, None] * logits, where=visible, extra=("variance",)))
        sharpened: Array = beta[:, None] * logits
        return sharpened


def _positive(x: Array) -> Array:
    """Return elu(x) + 1 as published code computes it: in float32 it is 0 from x = -17 on."""
    return jax.nn.elu(x) + 1
