"""The max-retrieval head of arXiv 2410.01104: one query attends to a set of items and names a class.

    h_i = psi_x(x_i)     h_q = psi_q(q)     e_i = (Q h_q)·(K h_i)     z = Σ softmax(e)_i V h_i     y = phi(z)

No 1/sqrt(d); psi_x, psi_q and phi are linear - GELU - linear. Everything linear is folded out of the work per item.
With features g_i = gelu(x_i W1 + b1), so that h_i = g_i W2 + b2,

    e_i = g_i · r(q) + constant,   r(q) = W2 Kᵀ Q h_q          Σ w_i V h_i = V (W2 Σ w_i g_i + b2)

The constant is the same for every item of a set, so any rule that ignores a shift of the logits gives the same output:
`max_retrieval_direct` is the form as written, and a test holds the two equal. With `encoder="linear"` psi_x is the
identity (K and V are linear already), and g_i = x_i.

The paper leaves open the activation's form, the initialisation, and whether Q, K and V have biases: `gelu`, `weights`
and `biased` below. A bias of K adds a constant to a set's logits, so it changes nothing and is left out.
"""

from dataclasses import dataclass
from typing import Any

from sharpmax.extras import extra
from sharpmax.models.products import MANTISSA_BITS, product

with extra("jax"):
    import jax
    from jax import Array

Params = dict[str, Any]
ENCODERS = ("mlp", "linear")
GELUS = ("tanh", "exact")
WEIGHTS = ("lecun_normal", "glorot_normal", "he_normal")


@dataclass(frozen=True)
class Head:
    """The architecture; the parameters are a separate tree, from `init`.

    Attributes:
        features: numbers an item has.
        classes: answers there are.
        width: of every hidden layer and of the value.
        key_width: of Q h_q and K h_i. At 1 the query can only scale a row, never reorder it.
        encoder: psi_x, "mlp" or "linear".
        initial_keys: scale of K at first. From 0, which is uniform attention, only what ranks the items grows; from 1
            linear keys may begin by shutting out a class, whose answer the decoder then never learns.
        gelu: the activation's form, the "tanh" approximation (JAX's default) or "exact".
        weights: how matrices are drawn, by the name of JAX's initialiser; biases start at 0.
        biased: whether Q and V have biases.
        products: precision of the matrix products, "float32", "tf32" or "bfloat16".
    """

    features: int = 11
    classes: int = 10
    width: int = 128
    key_width: int = 128
    encoder: str = "mlp"
    initial_keys: float = 1.0
    gelu: str = "tanh"
    weights: str = "lecun_normal"
    biased: bool = False
    products: str = "float32"

    def __post_init__(self) -> None:
        choices = {"encoder": ENCODERS, "gelu": GELUS, "weights": WEIGHTS, "products": tuple(MANTISSA_BITS)}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(f"expected {name} to be one of {', '.join(known)}, got {getattr(self, name)!r}")

    def init(self, key: Array) -> Params:
        """Draw the parameters."""
        for_item, for_query, for_decoder, for_q, for_k, for_v = jax.random.split(key, 6)
        encoded = self.features if self.encoder == "linear" else self.width
        params = {
            "query": self._init_mlp(for_query, 1, self.width),
            "decoder": self._init_mlp(for_decoder, self.width, self.classes),
            "Q": self._init_matrix(for_q, self.width, self.key_width),
            "K": self.initial_keys * self._init_matrix(for_k, encoded, self.key_width),
            "V": self._init_matrix(for_v, encoded, self.width),
        }
        if self.encoder == "mlp":
            params["item"] = self._init_mlp(for_item, self.features, self.width)
        if self.biased:
            params |= {"Q_bias": jax.numpy.zeros(self.key_width), "V_bias": jax.numpy.zeros(self.width)}
        return params

    @property
    def item_matrices(self) -> tuple[tuple[str, ...], ...]:
        """The places in the tree of the matrices (features, …) that multiply items."""
        return (("K",), ("V",)) if self.encoder == "linear" else (("item", "hidden"),)

    def item_features(self, params: Params, items: Array) -> Array:
        """Return g (sets, n, width) of the items (sets, n, features): all the work there is per item."""
        if self.encoder == "linear":
            return items
        sets, n, features = items.shape
        # As one flat matrix: the weight gradient is then a plain product, several times faster on a CPU.
        hidden = self._product("ij,jk->ik", items.reshape(sets * n, features), params["item"]["hidden"])
        return self._gelu(hidden.reshape(sets, n, self.width) + params["item"]["hidden_bias"])

    def reader(self, params: Params, query: Array) -> Array:
        """Return r (sets, width), by which a set's features are read: e_i = g_i · r."""
        r = self._product("sk,fk->sf", self.asked(params, query), params["K"])
        return r if self.encoder == "linear" else self._product("sf,gf->sg", r, params["item"]["output"])

    def asked(self, params: Params, query: Array) -> Array:
        """Return Q h_q (sets, key_width)."""
        asked = self._product("sf,fk->sk", self.mlp(params["query"], query), params["Q"])
        return asked + params["Q_bias"] if self.biased else asked

    def logits(self, features: Array, reader: Array) -> Array:
        """Return e (sets, n), up to a constant of each set."""
        return self._product("snf,sf->sn", features, reader)

    def decode(self, params: Params, pooled: Array) -> Array:
        """Return the class scores (…, classes) of pooled features Σ w_i g_i (…, width)."""
        if self.encoder == "mlp":
            pooled = self._product("...f,fg->...g", pooled, params["item"]["output"]) + params["item"]["output_bias"]
        value = self._product("...f,fg->...g", pooled, params["V"])
        return self.mlp(params["decoder"], value + params["V_bias"] if self.biased else value)

    def mlp(self, layer: Params, x: Array) -> Array:
        """Apply linear - GELU - linear to the last axis."""
        hidden = self._gelu(self._product("...i,ij->...j", x, layer["hidden"]) + layer["hidden_bias"])
        output: Array = self._product("...i,ij->...j", hidden, layer["output"]) + layer["output_bias"]
        return output

    def __call__(
        self, params: Params, items: Array, query: Array, *, visible: Array | None = None, beta: Array | float = 1.0
    ) -> Array:
        """Return the class scores (sets, classes) under softmax at the inverse temperature `beta`."""
        features = self.item_features(params, items)
        logits = self.logits(features, self.reader(params, query))
        weights = jax.nn.softmax(beta * logits, axis=-1, where=visible)
        return self.decode(params, self._product("sn,snf->sf", weights, features))

    def _product(self, subscripts: str, a: Array, b: Array) -> Array:
        return product(subscripts, a, b, self.products)

    def _gelu(self, x: Array) -> Array:
        return jax.nn.gelu(x, approximate=self.gelu == "tanh")

    def _init_matrix(self, key: Array, inputs: int, outputs: int) -> Array:
        drawn: Array = getattr(jax.nn.initializers, self.weights)()(key, (inputs, outputs))
        return drawn

    def _init_mlp(self, key: Array, inputs: int, outputs: int) -> Params:
        first, second = jax.random.split(key)
        return {
            "hidden": self._init_matrix(first, inputs, self.width),
            "hidden_bias": jax.numpy.zeros(self.width),
            "output": self._init_matrix(second, self.width, outputs),
            "output_bias": jax.numpy.zeros(outputs),
        }
