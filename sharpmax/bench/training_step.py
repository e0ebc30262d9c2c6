"""What folding the max-retrieval head buys: steps of training, folded against the form as the paper writes it.

Both forms make the same steps from the same parameters on the same sets, all seeds in one scan, as the experiment does;
their losses are compared before they are timed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from rich.table import Table

from sharpmax.bench.timing import interleaved_medians
from sharpmax.extras import extra
from sharpmax.flags import require_at_least
from sharpmax.models.max_retrieval import Head
from sharpmax.models.max_retrieval_direct import direct_head
from sharpmax.tasks.max_retrieval import training_batch

with extra("jax"):
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax import Array, lax

FOLDED, DIRECT = "folded", "as written"


def measure(*, seeds: int = 10, batch: int = 128, steps: int = 20, repeats: int = 9) -> dict[str, Any]:
    """Check, then time; returns the milliseconds of a step of all seeds, the operations XLA counts, and both ratios.

    Raises:
        ValueError: a number below 1.
        ArithmeticError: if the two forms do not learn the same.
    """
    require_at_least(1, seeds=seeds, batch=batch, steps=steps, repeats=repeats)
    head = Head()
    keys = jax.random.split(jax.random.key(0), seeds)
    compiled = {
        name: jax.jit(partial(_train, form, batch, steps)).lower(jax.vmap(head.init)(keys), keys).compile()
        for name, form in ((FOLDED, head), (DIRECT, partial(direct_head, head)))
    }
    start = jax.vmap(head.init)(keys)
    losses = [np.asarray(train(start, keys)) for train in compiled.values()]
    difference = float(np.abs(losses[0] - losses[1]).max())
    if not difference <= 1e-3:  # rounding, and what Adam makes of it
        raise ArithmeticError(f"expected the same losses from both forms, got them {difference:.1e} apart")
    calls = {name: partial(_wait, train, start, keys) for name, train in compiled.items()}
    seconds = interleaved_medians(calls, repeats=repeats)
    counts: dict[str, Any] = {name: train.cost_analysis() for name, train in compiled.items()}
    operations = {name: float(count["flops"]) for name, count in counts.items()}
    result = {
        "milliseconds": {name: 1e3 * each / steps for name, each in seconds.items()},
        "operations": operations,
        "faster": seconds[DIRECT] / seconds[FOLDED],
        "fewer_operations": operations[DIRECT] / operations[FOLDED],
        "largest_difference": difference,
    }
    return {"seeds": seeds, "batch": batch, "steps": steps, "repeats": repeats, "results": [result]}


def show(figures: dict[str, Any]) -> Any:
    """Lay the figures out as a table for the terminal."""
    title = f"one step of {figures['seeds']} seeds, {figures['batch']} sets each, median of {figures['repeats']} turns"
    table = Table("", FOLDED, DIRECT, "ratio", title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    (result,) = figures["results"]
    for of, ratio in (("milliseconds", "faster"), ("operations", "fewer_operations")):
        table.add_row(of, *(f"{result[of][form]:,.1f}" for form in (FOLDED, DIRECT)), f"{result[ratio]:.2f}")
    return table


def _train(form: Callable[..., Array], batch: int, steps: int, params: Any, keys: Array) -> Array:
    """Return the losses (steps, seeds) of Adam on sets of 5 to 16 items."""
    adam = optax.adam(1e-3)

    def one_seed(state: Any, key: Array, step: Array) -> tuple[Any, Array]:
        sets = training_batch(jax.random.fold_in(key, step), batch, sizes=(5, 16))

        def loss_of(params: Any) -> Array:
            scores = form(params, sets.items, sets.query, visible=sets.visible)
            return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores, sets.target))

        params, moments = state
        loss, gradient = jax.value_and_grad(loss_of)(params)
        change, moments = adam.update(gradient, moments)
        return (optax.apply_updates(params, change), moments), loss

    def every_seed(state: Any, step: Array) -> tuple[Any, Array]:
        return jax.vmap(one_seed, in_axes=(0, 0, None))(state, keys, step)

    return lax.scan(every_seed, (params, jax.vmap(adam.init)(params)), jnp.arange(steps))[1]


def _wait(train: Callable[..., Array], *arguments: Any) -> None:
    jax.block_until_ready(train(*arguments))
