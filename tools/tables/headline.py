"""The table of the README: three results and a miss, what limits each, and its command."""

from tools.tables.attention import forward_range
from tools.tables.calibration import right_answers
from tools.tables.claims import points_of
from tools.tables.recall import summary
from tools.tables.records import markdown, percent, read, table


@table
def headline() -> str:
    """Return one row for each of three results, and one for a result that failed."""
    fresh = summary(5)
    plain, scaled = (percent(fresh[arm]["1024"]["mean"]) for arm in ("softmax", "beyond-log-n"))
    before, after, lora = right_answers("32")
    behind = read("clrs-text", "smollm2-compile", "metrics.json")["difference"]["paper"]["trained"]["all"]
    rows = [
        [
            "A Transformer trained to look up 14 pairs, asked among 1,024; five fresh seeds",
            f"{plain} % → {scaled} % with `log n` at inference, no training",
            "`sharpmax reproduce recall --full --seed 5`",
        ],
        [
            "SmolLM2 (4-bit weights) with a fitted card, lookups among 32 entries; five seeds",
            f"{before} % → {after} % right; a LoRA of equal cost has {lora} %",
            "`sharpmax reproduce calibration --device cuda --proposals peps/peps`",
        ],
        [
            "Attention with every row sharpened on an H200, over plain attention",
            f"forward: {forward_range()}",
            "`sharpmax bench attention --only ours`",
        ],
        [
            "A miss: SmolLM2-135M fine-tuned on [CLRS-Text](docs/results/clrs-text.md) with the paper's rule",
            f"{points_of(behind)} to plain attention at the trained lengths; undecided beyond",
            "`sharpmax reproduce clrs-text --compile --seeds 4`",
        ],
    ]
    return markdown(["question", "result", "command"], rows)
