"""Prove beyond which size no token can hold half of a head's attention, and measure what is seen: `sharpmax certify`.

Claim (Prop. 3.1 and Lemma 2.1): weights bound the spread of the logits, and the spread bounds sharpness. Expected:
proved sizes that are astronomical, because weights allow far more than text ever shows; measured spreads all within the
proved ones. Cost: one singular value per head, and one forward pass.
"""

from pathlib import Path
from typing import Any

import numpy as np

from sharpmax import defaults
from sharpmax.core.policies import Constant
from sharpmax.dispersion.certificates import WEIGHTS
from sharpmax.hf.diagnosis.certify import certify as certify_heads
from sharpmax.hf.diagnosis.heads import checked_lengths, source_code
from sharpmax.hf.models.load import load
from sharpmax.hf.sharpen.sidecar import card_for
from sharpmax.runs.run_folder import RunFolder, run_name
from sharpmax.tasks.text_files import read_texts


def certify(
    model: str,
    *,
    text: str | Path | None = None,
    length: int | None = None,
    card: str | Path | None = None,
    out: str | Path = defaults.OUT,
    device: str | None = None,
    accept_license: bool = False,
) -> dict[str, Any]:
    """Certify every head of a model, and measure its spread on a text; returns what metrics.json holds.

    Args:
        model: a built-in name, a local folder or a hub name.
        text: a file to measure on; Python's own source code unless given.
        length: how many tokens of it; 512, or as many as the text and the model hold, unless given.
        card: certify the model as sharpened by this card, and measure it so.
        device: where to run; the processor unless given.
    """
    if length is not None and length < 2:
        raise ValueError(f"expected a length of 2 tokens or more, got {length}")
    policy = Constant(1.0) if card is None else card_for(model, card).policy
    content = source_code() if text is None else read_texts([text])
    loaded = load(model, accept_license=accept_license, device=device)
    tokens = loaded.tokens(content).shape[1]
    if tokens < 2 or not content.strip():
        raise ValueError(f"expected a text of 2 tokens or more to measure on, got {tokens}")
    if length is None:
        length = min(defaults.CERTIFIED_LENGTH, loaded.context, tokens)
    checked_lengths(loaded, [length])
    if length > tokens:
        raise ValueError(f"the text has {tokens} tokens, fewer than the length {length}")
    config = {"seed": None, "model": model, "text": None if text is None else str(text), "length": length}
    config["card"] = None if card is None else str(card)
    if device is not None:
        config["device"] = device
    place = (out, "certify", run_name(model), config)
    RunFolder.planned(*place)
    certificates = certify_heads(loaded, content, length=length, policy=policy)
    folder = RunFolder.open(*place)
    ratios = [c.measured_spread / c.proved_spread for c in certificates if c.measured_spread is not None]
    metrics = {
        "heads": [c.to_json() for c in certificates],
        "largest_share_of_bound": float(np.max(ratios)),
        "file": str(folder.path / "metrics.json"),
    }
    folder.finish(metrics)
    return metrics


def print_certificates(metrics: dict[str, Any]) -> None:
    """Print the range over heads of each spread and size."""
    for kind, said in (("proved", "proved from the weights"), ("measured", "with the spread seen on the text")):
        heads = [head for head in metrics["heads"] if head[f"{kind}_spread"] is not None]  # text passes an image's by
        spreads = [head[f"{kind}_spread"] for head in heads]
        print(f"{said}: spread {min(spreads):.1f} to {max(spreads):.1f}, median {np.median(spreads):.1f}")
        for weight in WEIGHTS:
            sizes = [head[f"{kind}_log10_n"][f"{weight:g}"] for head in heads]
            print(
                f"  no token holds {weight:.0%} beyond n = 10^{min(sizes):.1f} (first head) … "
                f"10^{np.median(sizes):.1f} (half of the heads) … 10^{max(sizes):.1f} (all heads)"
            )
    print(
        f"the widest row used {metrics['largest_share_of_bound']:.1%} of its proved bound; all of it: {metrics['file']}"
    )
