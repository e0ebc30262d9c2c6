"""Write the page of max retrieval: the claim, the table, the figures, and what they mean, for a newcomer."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sharpmax.experiments.max_retrieval import tables
from sharpmax.experiments.max_retrieval.figures import RULES, accuracy_by_size
from sharpmax.report import Block, Drawn, Page, Text
from sharpmax.report.page import Display
from sharpmax.runs.committed import committed_metrics
from sharpmax.runs.run_folder import RunFolder

EXPERIMENT = "max-retrieval"
TITLES = {"paper": "Max retrieval: the paper's head", "sharp": "Max retrieval: a head that stays right"}
LEADS = {
    "paper": "One attention head learns to name the class of the largest item in sets of 5 to 16. Asked about larger "
    "sets it fails, slowly, then completely. A rule that reads each row's own entropy wins back all that "
    "temperature can.",
    "sharp": "Trained on the same 5 to 16 items by another recipe, this head ranks them exactly, so it still names the "
    "right class among thousands of times as many. The gain is the recipe's: plain softmax has it too. What failed "
    "in the paper's head was not softmax alone, but the ranking.",
}
CAPTIONS = {
    "accuracy": (
        "Share of sets answered rightly; shade: one standard error over seeds. Dots: the paper's Table 1, where "
        "sources agree.",
        "Accuracy against the number of items, one line for each rule.",
    ),
    "maps-softmax": (
        "As the paper's Figure 2. Each map: 32 sets, the weights of their 16 largest items, largest on the left.",
        "Maps of weights, one for each size; what is bright is attended to.",
    ),
    "maps-rules": (
        "As the paper's Figure 5, with EntropyTarget below: the same sets under three rules.",
        "Rows of maps of weights, one row for each rule, one map for each size.",
    ),
    "fit": (
        "As the paper's Figure 6: the best inverse temperature of rows whose largest logit is the wrong item, and its "
        "regression on the entropy.",
        "A cloud of points with two curves through it.",
    ),
    "largest-weight": (
        "Mean largest weight by rule, and the band that Lemma 2.1 allows plain softmax at the largest spread seen.",
        "Largest weight against the number of items, one line for each rule, and a band.",
    ),
    "entropy": ("Mean entropy of plain softmax, between its bounds.", "A rising line inside a rising band."),
    "losses": (
        "Every set is one of three: right, right with a colder softmax, or ranked wrongly.",
        "Three stacked areas against the number of items.",
    ),
    "precision": (
        "The same trained heads, with the operands of every matrix product rounded as the hardware would. A quarter of "
        "the sets.",
        "Pairs of lines by precision.",
    ),
}
CRITERIA = {
    "coefficient": "a mis-ranked row's best β gives its right item the most weight, other rows have none",
    "majority": "the same, and a row ranked rightly wants the least β that gives its right item half the weight",
}


def tell(metrics: dict[str, Any], figures: Mapping[str, Display], folder: RunFolder) -> None:
    """Draw the figures into the run folder and write the page beside them."""
    kind = _kind(folder)
    drawn = {name: Drawn(name, display, *CAPTIONS[name]) for name, display in figures.items()}
    blocks: list[Block] = [*_committed(metrics), _how_it_was_made(metrics, folder)]
    if kind == "paper":
        blocks += [tables.beside_the_paper(metrics), *_discrepancy(metrics)]
    blocks += _the_claim(folder)
    blocks += [drawn["accuracy"], tables.all_rules(metrics), tables.recovered(metrics), _what_rules_do(metrics)]
    blocks += [drawn[name] for name in ("maps-softmax", "maps-rules", "fit") if name in drawn]
    blocks += [_fits(metrics), drawn["largest-weight"], drawn["entropy"], _why(metrics)]
    blocks += [drawn["losses"], _precision(metrics), drawn["precision"], _differences(kind), tables.redraws(metrics)]
    blocks += _rotation() if kind == "sharp" else _beyond()
    Page(TITLES[kind], LEADS[kind], blocks).save(folder.path)


def _kind(folder: RunFolder) -> str:
    """Return which of the two stories a run tells: a recipe of one's own is like one or the other."""
    return "sharp" if folder.config["recipe"]["sharpening"] else "paper"


def _how_it_was_made(metrics: dict[str, Any], folder: RunFolder) -> Text:
    config = folder.config
    seeds = f"{metrics['seeds']} seed{'s' if metrics['seeds'] > 1 else ''}"
    made = f"{seeds}, {config['recipe']['steps']:,} steps of {config['recipe']['batch']:,} sets"
    smaller = (
        f"The run of your machine is a smaller one ({metrics['scale']}), made to finish soon: {made}. It checks that "
        "the code does here what it did for the full run (ten seeds, --full), and is no result by itself: its heads "
        "are trained for less, so their accuracies are lower, and so few seeds give no interval."
    )
    return Text(tables.how_much(metrics["scale"], made, smaller), "Your run")


def _the_claim(folder: RunFolder) -> list[Text]:
    task = Text(
        "An item is a priority, uniform in 0 to 1, and one of ten classes. A query that says nothing attends to all "
        "items of a set; a decoder must name the class of the item with the largest priority. The answer hangs on a "
        "single item, whatever the size of the set: such functions are called sharp. Softmax gives every item some "
        "weight, so with more items less is left for the one that matters.",
        "The task",
    )
    if _kind(folder) == "paper":
        return [task]
    trained = folder.config["recipe"]
    turned = "turned by a rotation that differs from seed to seed" if trained["rotated"] else "here not rotated"
    sharpest = trained["sharpening"]["inverse_temperature"]
    recipe = Text(
        f"The head sees 11 anonymous numbers per item, {turned}, and reads them linearly: its logit is slope · "
        "priority + an offset for the class. By symmetry the best offsets are equal, and what differs is noise of "
        "training. Only two items almost tied for the lead tell anything about it. So training multiplies the logits "
        f"by a sharpness that rises from 1 to {sharpest:,.0f} while the learning rate falls, which makes ever closer "
        "ties count, and the parameters of the last steps are averaged.",
        "The recipe",
    )
    return [task, recipe]


def _discrepancy(metrics: dict[str, Any]) -> list[Text]:
    """Flag the sizes at which our gain of the paper's polynomial is not the paper's."""
    apart = [gain for gain in tables.gains_of_the_polynomial(metrics) if gain.differs]
    if not apart:
        return []
    found = "; ".join(f"{gain.size:,} items: {gain.told} here, {gain.paper:+.1f} in the paper" for gain in apart)
    return [
        Text(
            f"The polynomial's gain over softmax, in points, is not the paper's at {len(apart)} sizes. {found}. Plain "
            "softmax agrees far better, so the heads are alike but their entropies need not be. The gain hangs on "
            "those: the polynomial acts between 0.849 and 5.945 nats, and a head a little sharper or softer gains more "
            "or less. What may shift them is not published: how weights start, which GELU, how L2 is coupled to Adam, "
            "and how the polynomial was fitted. We have not settled which it is.",
            "A discrepancy: our gain of the paper's polynomial",
        )
    ]


def _what_rules_do(metrics: dict[str, Any]) -> Text:
    beta = metrics["best_constant"]
    solved, hard = (metrics["summary"][rule] for rule in ("entropy_target", "hard"))
    apart = max(abs(100 * (solved[n]["mean"] - hard[n]["mean"])) for n in solved)
    largest = str(metrics["sizes"][-1])
    refit = "The refitted one has the same form, from these heads. " if "refit" in metrics["summary"] else ""
    return Text(
        "Every rule multiplies the logits of a row by β = 1/θ. The paper's polynomial reads β from the row's "
        f"entropy; it was fitted once, and above 5.945 nats it gives 1, that is, nothing. {refit}The table, fitted to "
        "these heads too, may only rise with the entropy. log n looks at the size alone. EntropyTarget solves for the "
        "β that brings the entropy down to 0.5 nats, so that the largest weight is large whatever the size. The best "
        f"constant is the best power of 2, chosen in hindsight for each size (at {int(largest):,} items: β = "
        f"{beta[largest]:g}). Hard takes the largest logit: where every temperature ends. "
        f"EntropyTarget equals hard within {apart:.2f} points at every size: one item decides here, so sharper is "
        "never wrong. A task where it is would tell the two apart; this one cannot.",
        "What each rule does",
    )


def _fits(metrics: dict[str, Any]) -> Text:
    told = []
    for rule, fit in metrics["fits"].items():
        if "nothing_to_fit" in fit:
            told.append(f"{RULES[rule].label}: nothing to fit here ({fit['nothing_to_fit']}).")
            continue
        plain, fitted = fit["held_out"]["plain"], fit["held_out"]["policy"]
        told.append(
            f"{RULES[rule].label} (criterion {fit['criterion']}: {CRITERIA[fit['criterion']]}): fitted to "
            f"{fit['rows_with_a_best']:,} of {fit['rows']:,} rows; on held-out rows the right item's mean weight goes "
            f"from {plain['coefficient']:.3f} to {fitted['coefficient']:.3f}."
        )
    return Text(" ".join(told), "The fitted rules")


def _why(metrics: dict[str, Any]) -> Text:
    n = str(metrics["sizes"][-1])
    lost = metrics["losses"][n]
    return Text(
        f"At {int(n):,} items plain softmax answers {100 * lost['right']:.1f} % rightly. A colder softmax would add "
        f"{100 * lost['temperature']:.1f} points; the remaining {100 * lost['ranking']:.1f} no temperature can win, "
        "because the largest logit belongs to the wrong item. The top two of n uniform numbers are about 1/n apart, "
        "so the ranking must be ever more exact. Lemma 2.1 itself does not bind yet: these logits spread over "
        f"{metrics['largest_spread'][n]:,.0f}, which allows any weight up to astronomical sizes. A head disperses as "
        "soon as many logits crowd near the top.",
        "Where answers are lost",
    )


def _precision(metrics: dict[str, Any]) -> Text:
    n = str(metrics["sizes"][-1])
    hard = {p: 100 * sum(v["hard"][n]) / len(v["hard"][n]) for p, v in metrics["products"].items()}
    return Text(
        "A ranking is only as exact as the products it is computed by. With hard attention, on a quarter of the sets "
        f"of {int(n):,} items, float32 products give {hard['float32']:.1f} %, TF32 {hard['tf32']:.1f} %, bfloat16 "
        f"{hard['bfloat16']:.1f} %. Rounding costs nothing where the head itself errs by more.",
        "What rounding costs",
    )


def _differences(kind: str) -> Text:
    if kind == "sharp":
        return Text(
            "Same task, same training sizes, same distribution, same decoder and query as the paper's head. "
            "Different: keys and values read the items linearly, keys have width 1 and start from 0, no L2, larger "
            "batches, rising sharpness, averaging, and one second moment of Adam for all features. Everything is in "
            "full float32 products.",
            "Where this differs from the paper",
        )
    return Text(
        "The paper does not say how weights start, which GELU it takes, whether the L2 term is coupled to Adam, or "
        "how its polynomial was fitted to the letter. We take LeCun-normal weights and zero biases, the tanh form, a "
        "coupled penalty of 0.5·10⁻³·‖w‖² over all parameters, and full-precision products; none of it was tuned to "
        "the table.",
        "Where we differ from the paper, and why",
    )


def _beyond() -> list[Block]:
    """Return what the sharp recipe makes of the same task, by its committed run, where the checkout is at hand."""
    sharp = committed_metrics(EXPERIMENT, "sharp")
    if sharp is None:
        return []
    (plain, solved), top = (sharp["summary"][rule] for rule in ("softmax", "entropy_target")), str(sharp["sizes"][-1])
    trained = sharp["config"]["recipe"]
    text = (
        "The ranking can be learned. Another recipe, --recipe sharp, trains on sets of 5 to 16 items too. With plain "
        f"softmax it is right on {100 * plain['16384']['mean']:.2f} % of the sets of 16,384 items, with EntropyTarget "
        f"on {100 * solved['16384']['mean']:.2f} %: that is the recipe, not the rule. At {int(top):,} items plain "
        f"softmax has {100 * plain[top]['mean']:.2f} %, EntropyTarget {100 * solved[top]['mean']:.2f} % (ten seeds, "
        f"committed). The price: logits that spread over {sharp['largest_spread'][top]:,.0f}, keys of width 1, and "
        f"{trained['steps'] * trained['batch'] / 1e6:.1f} million training sets. The mean entropy of plain softmax is "
        f"{np.mean(sharp['entropy'][top]):.2f} nats at {int(top):,} items and grows with n, so it disperses in the end."
    )
    return [Text(text, "And beyond the paper"), tables.all_rules(sharp)]


def _rotation() -> list[Block]:
    """Return what a rotation of the inputs changes, by the committed full runs, where the checkout is at hand."""
    rotated, straight = (committed_metrics(EXPERIMENT, name) for name in ("sharp", "sharp-unrotated"))
    if rotated is None or straight is None:
        return []
    why = (
        "Nothing tells the head which of the 11 numbers is the priority: each seed turns them by a rotation of its "
        "own. Adam as usual would notice, because it scales every coordinate by itself; with one scale for all "
        "features of an item, training commutes with the rotation (a test holds it to 1e-9 in float64), and the "
        "committed full runs, ten heads trained with and ten without, differ by no more than chance."
    )
    return [
        Text(why, "Does it matter how the inputs are turned?"),
        tables.rotated_or_not(rotated, straight, "entropy_target"),
    ]


def _committed(metrics: dict[str, Any]) -> list[Block]:
    """Return the committed full result with its plot, where this run is smaller and the checkout is at hand."""
    full = committed_metrics(EXPERIMENT, metrics["recipe"])
    if metrics["scale"] == "full" or full is None:
        return []
    told = f"{full['seeds']} seeds, every step of the recipe. Made by: {full['command']} on {full['device']}."
    blocks: list[Block] = [Text(told, "The full result, as committed")]
    blocks.append(Drawn("accuracy-full", accuracy_by_size(full), *CAPTIONS["accuracy"]))
    if full["recipe"] == "paper":
        blocks += [tables.beside_the_paper(full), *_discrepancy(full)]
    return [*blocks, tables.all_rules(full)]
