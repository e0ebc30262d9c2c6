"""The max-retrieval head as the paper writes it, nothing folded: what `max_retrieval` is tested and timed against.

h_i = psi_x(x_i)     h_q = psi_q(q)     e_i = (Q h_q)·(K h_i)     z = Σ softmax(beta·e)_i V h_i     y = phi(z)
"""

from sharpmax.extras import extra
from sharpmax.models.max_retrieval import Head, Params
from sharpmax.models.products import product

with extra("jax"):
    import jax
    from jax import Array


def direct_head(
    head: Head, params: Params, items: Array, query: Array, *, visible: Array | None = None, beta: Array | float = 1.0
) -> Array:
    """Return the class scores (sets, classes), equal to `head(params, items, query, …)` up to rounding."""
    encoded = items if head.encoder == "linear" else head.mlp(params["item"], items)
    keys = product("snf,fk->snk", encoded, params["K"], head.products)
    values = product("snf,fv->snv", encoded, params["V"], head.products)
    if head.biased:
        values = values + params["V_bias"]
    logits = product("snk,sk->sn", keys, head.asked(params, query), head.products)
    weights = jax.nn.softmax(beta * logits, axis=-1, where=visible)
    return head.mlp(params["decoder"], product("sn,snv->sv", weights, values, head.products))
