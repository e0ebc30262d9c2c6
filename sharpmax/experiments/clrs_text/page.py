"""Write the page of CLRS-Text: what was asked, what came of it beside what the paper says, and the numbers in full."""

from typing import Any

from sharpmax.experiments.clrs_text.claims import by_seed, claims, exact_at_trained, has_learned, interval
from sharpmax.experiments.clrs_text.study import LABELS
from sharpmax.experiments.clrs_text.summary import verdicts
from sharpmax.report import Drawn, Page, Table, Text, percent
from sharpmax.report.curves import Curve, CurvesDisplay, Mark
from sharpmax.report.heat_maps import HeatMapsDisplay
from sharpmax.report.style import COLOURS
from sharpmax.runs.committed import committed_metrics
from sharpmax.runs.run_folder import RunFolder

COMMITTED = "smollm2-compile"
"""The run of all thirty algorithms under `results/clrs-text`."""


KINDS = {"difference": "exact", "token_difference": "tokens"}


def tell(metrics: dict[str, Any], folder: RunFolder) -> None:
    """Draw the figures and write the page into the run folder."""
    Page(
        "CLRS-Text: does sharp attention reason better beyond its training sizes?",
        "A language model learns thirty textbook algorithms on inputs of 4 to 16 items and is asked about longer ones, "
        "with plain attention and with a temperature of its own in every head, in training and in use."
        if len(metrics["algorithms"]) == 30
        else "A smaller run: few algorithms, a small model, real data. It shows that everything works, nothing more.",
        [
            _what(metrics, folder),
            _claim(metrics),
            _beside_the_paper(metrics),
            _by_length(metrics),
            Drawn(
                "length",
                _curves(metrics, "exact", "exact answers, %", (0, 100)),
                "Exact answers by length of the input, mean over questions and seeds. Where long inputs do not fit, "
                "the mean is over the algorithms that do.",
                "Lines that fall beyond the longest trained length.",
            ),
            Drawn(
                "tokens",
                _curves(metrics, "tokens", "answer tokens right, %"),
                "The share of an answer's tokens that are right after the right ones before them, mean over questions "
                "and seeds. Commas and brackets count, so a model that knows the form alone is far above 0.",
                "Lines apart from plain attention's beyond the longest trained length.",
            ),
            _by_seed(metrics),
            _differences(metrics, "difference", "exact answers"),
            _differences(metrics, "token_difference", "the share of an answer's tokens that are right"),
            _maps(metrics),
            *[_in_full(metrics, arm) for arm in metrics["accuracy"]],
            _how(metrics),
            *_committed(metrics),
        ],
    ).save(folder.path)


def _what(metrics: dict[str, Any], folder: RunFolder) -> Text:
    config = folder.config
    recipe, plan = config["recipe"], config["corpus"]
    lengths = plan["train_lengths"]
    return Text(
        f"{config['model']}, {len(metrics['algorithms'])} algorithms, trained on inputs of {lengths[0]} to "
        f"{lengths[-1]} items: {recipe['steps']:,} steps of {recipe['tokens']:,} tokens, {metrics['seeds']} seeds an "
        "arm, every arm on the same examples in the same order. "
        f"Asked: {metrics['asked']:,} questions of the published validation seeds, "
        f"the first {plan['test_samples']} of each seed at lengths {', '.join(map(str, plan['test_lengths']))}; "
        f"{metrics['left_out']['test']:,} questions and {metrics['left_out']['train']:,} training examples of more "
        f"than {plan['most_characters']:,} characters were left out. No training example is a test example.",
        "What you are looking at",
    )


def _claim(metrics: dict[str, Any], title: str = "The claim, and what we see") -> Text:
    said = []
    for arm, spans in metrics["difference"].items():
        found = verdicts(spans["beyond"])
        said.append(
            f"{LABELS[arm]}: {interval(spans['beyond']['all'])} points of exact answers, ahead on "
            f"{len(found['ahead'])} algorithms, behind on {len(found['behind'])}, undecided on "
            f"{len(found['undecided'])}; {interval(metrics['token_difference'][arm]['beyond']['all'])} points of "
            "answer tokens."
        )
    count = metrics["seeds"]
    seeds = (
        f"resampling {count} seeds never leaves what these gave, so it knows little of another. So ahead and behind "
        "are said only where Student's interval over the seeds agrees"
    )
    if count == 1:
        seeds = "one seed says nothing of another: ahead and behind are said of this one alone"
    return Text(
        "The paper's numbers by algorithm are plots of Gemma 2B, so what can be compared is the direction. Here, "
        "difference to plain attention beyond the trained lengths, with the 95 % interval of a paired bootstrap over "
        f"seeds and questions: {' '.join(said)} An interval that holds 0 decides nothing, of forty that should hold it "
        f"about one lies above by chance, and {seeds}.{_barely_learned(metrics)}",
        title,
    )


def _beside_the_paper(metrics: dict[str, Any]) -> Table:
    return Table(
        ["the paper, with Gemma 2B", "seen here?", "in exact answers, points against plain attention"],
        [list(claim) for claim in claims(metrics)],
        "The paper's claims, and what the intervals allow to say of each.",
    )


def _barely_learned(metrics: dict[str, Any]) -> str:
    """Say so where the plain model cannot do at the trained lengths what is asked of it beyond them."""
    if has_learned(metrics):
        return ""
    return (
        f" The plain model gives {percent(exact_at_trained(metrics))} % of the answers exactly at the lengths it was "
        "trained on: it was trained too briefly to have learned these algorithms, and this run neither confirms nor "
        "refutes the paper."
    )


def _by_length(metrics: dict[str, Any]) -> Table:
    lengths = [str(n) for n in (*metrics["trained"], *metrics["beyond"])]
    rows = [
        [LABELS[arm], *(f"{percent(of[n]['exact'])} / {percent(of[n]['tokens'])}" for n in lengths)]
        for arm, of in metrics["by_length"].items()
    ]
    caption = (
        "Exact answers / the share of an answer's tokens that are right, in %, mean over questions and seeds, by "
        "length of the input."
    )
    return Table(["", *lengths], rows, caption)


def _by_seed(metrics: dict[str, Any]) -> Table:
    rows = [
        [LABELS[arm], *(by_seed(metrics[kind][arm][span]["all"]) for kind in KINDS for span in ("trained", "beyond"))]
        for arm in metrics["difference"]
    ]
    header = ["", *(f"{what}, {span}" for what in KINDS.values() for span in ("trained lengths", "beyond"))]
    caption = (
        "Over all questions, minus plain attention's, in points: each seed, and Student's 95 % interval of what seeds "
        "give on these questions."
    )
    return Table(header, rows, caption)


def _differences(metrics: dict[str, Any], kind: str, what: str) -> Table:
    arms = list(metrics[kind])
    rows = [
        [name, *(interval(metrics[kind][arm]["beyond"][name]) for arm in arms)]
        for name in ("all", *metrics["algorithms"])
    ]
    caption = (
        f"Beyond the trained lengths: {what} minus plain attention's, in points, with the 95 % interval of the paired "
        "bootstrap."
    )
    return Table(["", *(LABELS[arm] for arm in arms)], rows, caption)


def _in_full(metrics: dict[str, Any], arm: str) -> Table:
    lengths = [str(n) for n in (*metrics["trained"], *metrics["beyond"])]
    rows = [[name, *(percent(of[n]) for n in lengths)] for name, of in metrics["accuracy"][arm].items()]
    return Table(["", *lengths], rows, f"{LABELS[arm]}: exact answers in %, by algorithm and length; -: does not fit.")


def _how(metrics: dict[str, Any]) -> Text:
    agree, asked = (sum(run["generation"][key] for run in metrics["runs"]) for key in ("agree", "asked"))
    speed = "; ".join(
        f"{run['arm']} seed {run['seed']}, on {run['origin']['device']}: {run['tokens_per_second']:,} tokens/s, "
        f"trained in {run['seconds']['training']:,.0f} s, judged in {run['seconds']['judging']:,.0f} s"
        for run in metrics["runs"]
    )
    return Text(
        "An answer is exact if every one of its tokens, and the end, is the likeliest after what stands before it: "
        "then, and only then, does greedy decoding say it. One forward pass tells. Real generation was held against "
        f"it on {asked} answers and agreed on {agree}. {speed}.",
        "How it was measured",
    )


def _committed(metrics: dict[str, Any]) -> list[Text | Table]:
    """Return the committed run of all thirty, where this one is smaller and the checkout is at hand."""
    full = committed_metrics("clrs-text", COMMITTED)
    if len(metrics["algorithms"]) == 30 or full is None:
        return []
    title = f"All thirty algorithms, as committed: {full['config']['model']} on {full['runs'][0]['origin']['device']}"
    tables = [_beside_the_paper(full), _by_length(full), _by_seed(full)]
    return [_claim(full, title), *tables, _differences(full, "difference", "exact answers")]


RULES = {"plain": "softmax", "learn": "fitted"}
"""The rule of an arm, as `COLOURS` has it, where their names differ; `plain+paper` is drawn as paper's, dashed."""


def _curves(metrics: dict[str, Any], key: str, label: str, limits: tuple[float, float] | None = None) -> CurvesDisplay:
    lengths = [*metrics["trained"], *metrics["beyond"]]
    curves = [
        Curve(
            LABELS[arm],
            lengths,
            [None if of[str(n)][key] is None else 100 * of[str(n)][key] for n in lengths],
            color=COLOURS[RULES.get(arm.rpartition("+")[2], arm.rpartition("+")[2])],
            line="--" if "+" in arm else "-",
            marker="o",
        )
        for arm, of in metrics["by_length"].items()
    ]
    mark = [Mark("longest trained", x=max(metrics["trained"]))]
    return CurvesDisplay(curves, "items in the input", label, marks=mark, x_scale="linear", y_limits=limits)


def _maps(metrics: dict[str, Any]) -> Drawn:
    lengths = [str(n) for n in (*metrics["trained"], *metrics["beyond"])]
    maps = {
        arm: [[of[n] if of[n] is not None else float("nan") for n in lengths] for of in by.values()]
        for arm, by in metrics["accuracy"].items()
    }
    display = HeatMapsDisplay(
        {"": maps}, "length of the input", "", "exact answers", x_ticks=lengths, y_ticks=metrics["algorithms"]
    )
    return Drawn(
        "algorithms",
        display,
        f"Each map an arm, each row an algorithm, each column a length: {', '.join(lengths)}. White does not fit. "
        f"{'; '.join(f'{arm}: {LABELS[arm]}' for arm in metrics['accuracy'])}.",
        "Maps that are bright on the left, at trained lengths, and dark on the right.",
    )
