"""The table of the paper's claims: what it rests on there, what we found, and how far the two agree."""

from typing import Any

from sharpmax.experiments.max_retrieval import paper_table
from tools.tables.laws import depth_slopes
from tools.tables.models import diagnosis
from tools.tables.records import markdown, mean, percent, read, table

GEMMA = "Gemma 2B: [2.28, 14.78], mean 5.69; Gemma 7B: [0.09, 32.74], mean 5.82"


def _accuracies(run: dict[str, Any], rule: str) -> str:
    return ", ".join(percent(mean(run["accuracy"][rule][n])) for n in ("1024", "16384"))


def _published(values: tuple[float | None, ...]) -> str:
    found = dict(zip(paper_table.SIZES, values, strict=True))
    return ", ".join(f"{found[n]:.1f}" for n in (1024, 16384))


def points_of(apart: dict[str, Any]) -> str:
    """Return a difference in points, with Student's interval over seeds."""
    return f"{100 * apart['mean']:+.1f} points [{100 * apart['student'][0]:+.1f}, {100 * apart['student'][1]:+.1f}]"


@table
def paper_claims() -> str:
    """Return one row for each claim of the paper that a record of ours speaks to."""
    run, clrs = read("max-retrieval", "paper", "metrics.json"), read("clrs-text", "smollm2-compile", "metrics.json")
    sharp = read("max-retrieval", "sharp", "metrics.json")
    trained, at_inference = (clrs["difference"][arm]["trained"]["all"] for arm in ("paper", "plain+paper"))
    spread = diagnosis("smollm2-code")["spread"]
    entropies = read("alternatives", "paper", "metrics.json")["entropy"]
    slopes = ", ".join(f"{slope:.2f}" for slope in depth_slopes())
    soft, adaptive = paper_table.SOFTMAX, paper_table.ADAPTIVE
    rows = [
        [
            "Lemma 2.1: with logits in a spread δ no weight exceeds e^δ/n",
            "proof",
            "[Drawn](bounds.md): no draw leaves the bounds",
            "holds",
        ],
        [
            "Theorem 2.2: logits of a trained network are bounded, so every global head disperses at last",
            "proof",
            f"One token's [influence](../concepts/laws.md#depth) falls as n to the power {slopes} (median layer, three "
            "models); the spread of logits still grows there",
            "holds; the bound that ends it is far off",
        ],
        [
            "A head that finds the maximum of 16 items disperses among more",
            "maps of one head; Table 1",
            f"Entropy rises from {mean(run['entropy']['16']):.2f} to {mean(run['entropy']['16384']):.2f} nats. Logits "
            f"spread over {max(run['largest_spread'].values()):.0f}, so Lemma 2.1 allows any weight: they crowd near "
            "the top",
            "seen; the lemma is not the cause",
        ],
        [
            "Softmax's accuracy falls with the size (1,024 and 16,384 items)",
            f"Table 1: {_published(soft)} %",
            f"[{_accuracies(run, 'softmax')} %](max-retrieval.md)",
            "agrees",
        ],
        [
            "The adaptive temperature raises it, at inference",
            f"Table 1: {_published(adaptive)} %",
            f"{_accuracies(run, 'paper')} %; [the gain](max-retrieval.md#a-discrepancy) is larger, why is open",
            "agrees in sign",
        ],
        [
            "A temperature is what is missing",
            "implied",
            f"Hard attention has {_accuracies(run, 'hard')} %: the rest is ranking. Another recipe has "
            f"{percent(mean(sharp['accuracy']['softmax']['16384']))} % at 16,384 with plain softmax",
            "in part",
        ],
        [
            "Logits of language models spread little",
            GEMMA,
            f"[SmolLM2](models.md): [{spread['min']:.2f}, {spread['max']:.2f}], mean {spread['mean']:.2f}",
            "wider; Gemma is not measured",
        ],
        [
            "CLRS-Text, trained in: ahead on nearly all algorithms",
            "Gemma 2B, figures",
            f"[SmolLM2-135M](clrs-text.md): {points_of(trained)} at trained lengths; undecided beyond",
            "not seen, not refuted",
        ],
        [
            "CLRS-Text, at inference only: does not work well",
            "stated",
            f"{points_of(at_inference)} at trained lengths",
            "agrees",
        ],
        [
            "Weights that are not normalised escape dispersion, but rank badly",
            "stated",
            "[They rank badly](alternatives.md). At 16,384 items sigmoid has "
            f"{mean(entropies['sigmoid']['16384']):.1f} nats, softmax {mean(entropies['softmax']['16384']):.1f}",
            "in part: no escape",
        ],
    ]
    return markdown(["the paper's claim", "rests there on", "here", "verdict"], rows)
