"""Judge a result in JAX before it is timed: the last rows of one head, against the same function in float64.

That is the first head; of policies other than `PAPER`, whose numbers may differ from head to head, the last. A
contestant may err, in norm, twice what attention as people write it errs, plus one rounding of bfloat16.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sharpmax import PAPER, Constant, Policy, softmax
from sharpmax.bench import random_policies
from sharpmax.bench.random_policies import of_heads

ROWS = 64  # that are judged
FORWARD, TRAINED, STATISTICS = "forward, rows sharpened", "forward + backward", "row_stats"
"""The cases, by what is judged: the output, the gradient of the query, the entropy."""
PLAIN_BESIDE = "plain, other policies"
POLICIES: dict[str, Callable[[int], Policy]] = {
    f"forward, {name}": policy_of for name, policy_of in random_policies.POLICIES.items()
}
"""The forward cases of policies other than `PAPER`, from the number of heads."""


class Exact:
    """The last rows of the first head in float64, exact and as people write it, once a policy."""

    def __init__(self, inputs: tuple[Any, ...]) -> None:
        last, whole = ((0, slice(-ROWS, None), 0), (0, slice(None), 0))
        self.given = [np.asarray(x[last if i in (0, 3) else whole], np.float64) for i, x in enumerate(inputs)]
        self.inputs = inputs
        self.found: dict[bool, tuple[dict[str, Any], dict[str, Any]]] = {}

    def error(self, case: str, name: str, result: Any) -> float:
        """Return the error in norm: of the output, the entropy, or the gradient of the query.

        Raises:
            ArithmeticError: if it is more than twice what attention as people write it errs, and a rounding.
        """
        import jax.numpy as jnp

        if case in POLICIES:
            return self._error_of_policy(POLICIES[case], result)
        if (plain := name == "plain") not in self.found:
            self.found[plain] = self._both(Constant(1.0) if plain else PAPER)
        which = {FORWARD: "output", PLAIN_BESIDE: "output", TRAINED: "gradient", STATISTICS: "entropy"}[case]
        exact, low = (found[which] for found in self.found[plain])
        found = result.entropy[0, 0] if case == STATISTICS else (result[1][0] if case == TRAINED else result)[0, :, 0]
        return _allowed(np.asarray(found[-ROWS:].astype(jnp.float32), np.float64), exact, low)

    def _error_of_policy(self, policy_of: Callable[[int], Policy], result: Any) -> float:
        """Return the error of the last head, whose numbers are its own."""
        import jax.numpy as jnp

        last = result.shape[2] - 1
        q, k, v = (np.asarray(x[0, :, last], np.float64) for x in self.inputs[:3])
        policy = of_heads(policy_of(last + 1), [last])
        # A row statistic of one head is (1, ROWS), as the numbers of one head are (1, 1).

        def output(rounded: Callable[[Any], Any]) -> Any:
            return rounded(softmax(_logits(q[-ROWS:], k, rounded)[None], policy)[0]) @ v

        exact, low = output(lambda x: x), output(_in_bfloat16)
        return _allowed(np.asarray(result[0, -ROWS:, last].astype(jnp.float32), np.float64), exact, low)

    def _both(self, policy: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        q, k, v, d = self.given
        return _dense(q, k, v, d, policy, lambda x: x), _dense(q, k, v, d, policy, _in_bfloat16)


def _allowed(found: Any, exact: Any, low: Any) -> float:
    error, spent = (float(np.linalg.norm(x - exact) / np.linalg.norm(exact)) for x in (found, low))
    allowed = 2 * spent + 2.0**-8
    if not error <= allowed:
        raise ArithmeticError(f"errs by {error:.1e}, at most {allowed:.1e} is allowed; not timed")
    return error


def _logits(q: Any, k: Any, rounded: Callable[[Any], Any]) -> Any:
    """Return the causal logits of the last queries, their products rounded as told."""
    behind = np.arange(len(q))[:, None] + len(k) - len(q) - np.arange(len(k))
    return np.where(behind >= 0, rounded(q @ k.T) * q.shape[1] ** -0.5, -np.inf)


def _in_bfloat16(x: Any) -> Any:
    import jax.numpy as jnp

    return x.astype(jnp.bfloat16).astype(np.float64)


def _dense(q: Any, k: Any, v: Any, d: Any, policy: Any, rounded: Callable[[Any], Any]) -> dict[str, Any]:
    """Compute the rows densely in float64, the products of queries and keys and the weights rounded as told.

    The gradient is that of DESIGN's algebra, beta'(H) from a difference: de = beta·dS - dbeta·beta'(H)·p(log p + H).
    """
    from sharpmax.core.policies.base import choose
    from sharpmax.core.stats import RowStats

    scale = q.shape[1] ** -0.5
    e = _logits(q, k, rounded)
    m = e.max(1, keepdims=True)
    log_p = e - m - np.log(np.exp(e - m).sum(1, keepdims=True))
    p = np.exp(log_p)
    surprise = np.where(p > 0, log_p, 0.0)
    entropy = -(p * surprise).sum(1)

    def beta_at(entropy: Any) -> Any:
        stats = RowStats(entropy=entropy, logsumexp=m[:, 0], maximum=m[:, 0], count=np.isfinite(e).sum(1) * 1.0)
        return choose(policy, stats)[:, None]

    beta = beta_at(entropy)
    w = np.exp(beta * (e - m))
    w = rounded(w / w.sum(1, keepdims=True))
    g = d @ v.T
    d_scaled = w * (g - (w * g).sum(1, keepdims=True))
    d_beta = (np.where(w > 0, e, 0.0) * d_scaled).sum(1, keepdims=True)
    slope = (beta_at(entropy + 1e-6) - beta_at(entropy - 1e-6)) / 2e-6
    d_e = beta * d_scaled - d_beta * slope * p * (surprise + entropy[:, None])
    return {"output": w @ v, "entropy": entropy, "gradient": scale * d_e @ k}
