"""The rules that compete at inference, each a policy, and what is fitted for two of them.

| rule            | beta                                                                                             |
|-----------------|--------------------------------------------------------------------------------------------------|
| softmax         | 1                                                                                                |
| paper           | the published polynomial in the entropy                                                          |
| refit           | the same form, fitted to these heads by `sharpmax.fitting` with the paper's procedure          |
| table           | non-decreasing in the entropy: the beta that gives the right item half of the weight             |
| entropy_target  | solved, so that the entropy is at most 0.5 nats                                                  |
| log_n           | log n / log 16: 1 at the largest training size                                                   |
| constant_…      | a power of 2; in hindsight the best of them at each size is reported as best_constant            |

The two fits read rows of sizes up to 1,024 from sets that no evaluation uses, all seeds pooled, so that each rule is
one policy for every head, as the paper's is.
"""

from typing import Any

from sharpmax.core.cards import policy_from_json, policy_to_json
from sharpmax.core.policies import PAPER, Constant, EntropyTarget, LengthScaled, Policy
from sharpmax.experiments.max_retrieval.evaluate import at_each_size, logit_rows
from sharpmax.experiments.max_retrieval.plan import SMALLEST, Plan
from sharpmax.experiments.max_retrieval.recipes import Recipe
from sharpmax.experiments.max_retrieval.train import CALIBRATION, Trained, seed_keys
from sharpmax.extras import extra
from sharpmax.fitting import Calibration, NothingToFitError, calibrate
from sharpmax.runs.run_folder import RunFolder

with extra("jax"):
    import jax
    import jax.numpy as jnp
    import numpy as np

CONSTANTS = {f"constant_{2**k}": Constant(float(2**k)) for k in range(13)}
FITS = {
    "refit": {"form": "polynomial", "criterion": "coefficient"},
    "table": {"form": "table", "criterion": "majority"},
}
CALIBRATION_SIZES = (16, 64, 256, 1024)
CALIBRATION_SHARE = 16  # of the sets that are evaluated
SHOWN_ROWS = 1500  # of the fit's scatter, kept for its figure


def rules_for(recipe: Recipe, fits: dict[str, Any]) -> dict[str, Policy]:
    """Return every rule by name, the fitted ones where there was something to fit."""
    fitted = {name: policy_from_json(fit["policy"]) for name, fit in fits.items() if "policy" in fit}
    fixed: dict[str, Policy] = {
        "softmax": Constant(1.0),
        "paper": PAPER,
        "entropy_target": EntropyTarget(0.5),
        "log_n": LengthScaled.log_n(recipe.sizes[1]),
    }
    return {**fixed, **fitted, **CONSTANTS}


def fit_rules(plan: Plan, trained: Trained, folder: RunFolder) -> dict[str, Any]:
    """Fit each of `FITS`, save its card in the folder, and return what the page tells about it, as JSON."""
    sizes = [n for n in CALIBRATION_SIZES if n <= plan.sizes[-1]]
    sets = plan.sets_of(SMALLEST) // CALIBRATION_SHARE
    rows = list(at_each_size(lambda n: _rows(plan, trained, n, sets), sizes).values())
    fits = {}
    for name, options in FITS.items():
        try:
            result = calibrate(rows, seed=plan.seed, **options)  # type: ignore[arg-type]
        except NothingToFitError as reason:  # a head that ranks every row rightly leaves nothing to fit
            fits[name] = {"nothing_to_fit": str(reason)}
            continue
        data = f"max retrieval, sizes {sizes[0]} to {sizes[-1]}, {sets} sets a size and seed"
        result.save(
            folder.path / f"{name}-card.json", model=f"max-retrieval head, recipe {plan.recipe.name}", data=data
        )
        fits[name] = _told(result)
    return fits


def _rows(plan: Plan, trained: Trained, n: int, sets: int) -> tuple[Any, Any]:
    """Return the logits (seeds·sets, n) and the index of the largest priority (seeds·sets,)."""
    keys = seed_keys(plan.seed, plan.seeds, CALIBRATION)
    logits, top = [], []
    for s in range(plan.seeds):
        key = jax.random.fold_in(keys[s], n)
        e, _, drawn = logit_rows(plan.recipe.head, n, *trained.head(s), key, jnp.arange(sets))
        logits.append(np.asarray(e))
        top.append(np.asarray(drawn.top))
    return np.concatenate(logits), np.concatenate(top)


def _told(result: Calibration) -> dict[str, Any]:
    has_best = np.isfinite(result.fitted.inverse_temperature)
    entropy, beta = result.fitted.entropy[has_best], result.fitted.inverse_temperature[has_best]
    shown = slice(None, None, -(-len(entropy) // SHOWN_ROWS))
    return {
        "policy": policy_to_json(result.policy),
        "criterion": result.criterion,
        "rows": len(has_best),
        "rows_with_a_best": int(has_best.sum()),
        "held_out": result.held_out,
        "entropy": entropy[shown].round(4).tolist(),
        "inverse_temperature": beta[shown].round(4).tolist(),
    }
