"""Prove beyond which size no token can hold half of a head's attention, and measure what is seen: `sharpmax certify`.

Claim (Prop. 3.1 and Lemma 2.1): weights bound the spread of the logits, and the spread bounds sharpness. Expected:
proved sizes that are astronomical, because weights allow far more than text ever shows; measured spreads all within the
proved ones. Cost: one singular value per head, and one forward pass; seconds for a small model.
"""

from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np

from sharpmax import defaults
from sharpmax.core.cards import policy_to_json
from sharpmax.core.checks import is_count, short
from sharpmax.core.policies import Constant
from sharpmax.dispersion.certificates import WEIGHTS
from sharpmax.hf.diagnosis.certify import certify as certify_heads
from sharpmax.hf.diagnosis.certify import expected_sizes
from sharpmax.hf.diagnosis.heads import checked_lengths, source_code, unwritten
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.pace import seconds_per_token
from sharpmax.hf.sharpen.layers import attention_layers
from sharpmax.hf.sharpen.sidecar import card_for
from sharpmax.hf.verbs.evaluate import digest
from sharpmax.hf.verbs.next_command import command
from sharpmax.hf.verbs.result import Result, loaded_model, name_of
from sharpmax.runs.progress import say_estimate, shown, stage
from sharpmax.runs.run_folder import RunFolder, run_name
from sharpmax.tasks.text_files import read_texts

HALF = "0.5"
"""The weight that the first lines speak of, as the metrics name it."""
SPREADS = 2.5
"""Singular values of a model's projections take about so many readings of the default text."""


LARGEST = 8  # log10 of the most tokens that the figure shows
NEVER = 99.0
"""log10 of a size that stands for none."""
CAPTION = (
    "Tokens beyond which no token holds that weight. Seen: from the spread of logits on this text. Proved: from the "
    "weights of the model, for any text. Expected: by the law of dispersion, of the heads that hold the weight now."
)


class CertificationResult(Result):
    """The certificates of every head."""

    def summary(self) -> str:
        """Return first what was seen, then what is proved, in words."""
        seen, proved = (self._sizes(kind, HALF) for kind in ("measured", "proved"))
        length = self.metrics["length"]
        lines = []
        if seen:
            lines.append(
                f"seen on {length} tokens: with the spread of logits that this text shows, the first head cannot give "
                f"half of its weight to one token beyond {_size(min(seen))} tokens, half of the heads cannot beyond "
                f"{_size(float(np.median(seen)))}, and no head can beyond {_size(max(seen))}"
            )
        lines.append(
            f"proved from the weights, for any text: the first head cannot beyond {_size(min(proved))} tokens, and no "
            f"head can beyond {_size(max(proved))}"
        )
        if expected := self._expected(HALF):
            middle = median_low(expected)
            still = "most still do at a million times as many"  # as far as the law is followed
            until = still if middle == NEVER else f"half no longer do at {_size(middle)} tokens"
            lines.append(
                f"expected by the law of dispersion: of {len(expected)} heads that give one token half of their weight "
                f"at {length} tokens, {until}"
            )
        lines += [*self._persistence(), *self.metrics.get("unwritten", ())]
        if min(proved) > 7:
            lines.append("so the proof holds, and its sizes are beyond any text: go by what was seen")
        for kind, said in (("measured", "seen on the text"), ("proved", "proved from the weights")):
            spreads = self._spreads(kind)
            if spreads:
                lines.append(
                    f"{said}: spread {min(spreads):.1f} to {max(spreads):.1f}, median {np.median(spreads):.1f}"
                )
        lines.append(f"the widest row used {self.metrics['largest_share_of_bound']:.1%} of its proved bound")
        return "\n".join(lines)

    def next_step(self) -> str:
        """Return the command that shows which heads disperse on this model."""
        return command("diagnose", self.model, {}, "which heads disperse, and how fast")

    def display(self) -> Any:
        """Return how many heads can still give half of their weight to one token, by the number of tokens."""
        from sharpmax.report.curves import Curve, CurvesDisplay
        from sharpmax.report.style import COLOURS

        sizes = np.linspace(1, LARGEST, 141)
        share = [self._able(size) for size in sizes]
        curve = Curve("of all heads", (10**sizes).tolist(), share, color=COLOURS["entropy_target"])
        return CurvesDisplay(
            [curve],
            "tokens",
            "heads that can hold half, %",
            f"{self.model}: by the spread seen on {self.metrics['length']} tokens",
            x_scale="log",
            y_limits=(0, 104),
        )

    def _able(self, size: float) -> float:
        """Return what percentage of the heads can give half of their weight to one of 10^size tokens."""
        able = np.asarray(self._sizes("measured", HALF) or self._sizes("proved", HALF))
        return 100 * float((able >= size).mean())

    def _takeaway(self) -> str:
        return (
            f"{self._able(4):.0f} % of the heads can give half of their weight to one of 10,000 tokens, "
            f"{self._able(LARGEST):.0f} % to one of 10^{LARGEST}."
        )

    def page(self) -> Any:
        """Return the two sentences, the figure, and the sizes by weight."""
        from sharpmax.report.page import Drawn, Page, Table, Text

        said = self.summary().splitlines()
        rows = []
        for kind, name in (("measured", "seen"), ("proved", "proved")):
            for weight in WEIGHTS:
                sizes = self._sizes(kind, f"{weight:g}")
                if sizes:
                    ends = (min(sizes), float(np.median(sizes)), max(sizes))
                    rows.append([name, f"{weight:.0%}", *map(_size, ends)])
        for weight in WEIGHTS:
            if sizes := self._expected(f"{weight:g}"):
                ends = (min(sizes), median_low(sizes), max(sizes))
                rows.append(["expected", f"{weight:.0%}", *map(_size, ends)])
        header = ["how it is known", "weight of one token", "first head", "half of the heads", "all heads"]
        blocks: list[Any] = [
            Drawn("figure", self.display(), self._takeaway(), said[0]),
            Table(header, rows, CAPTION),
            Text(" ".join(f"{line[:1].upper()}{line[1:]}." for line in said[1:]), "What is proved"),
            Text(self.next_step(), "What to do next"),
        ]
        weights = [Text(self._weights())] if self._weights() else []
        card = f" under {self.metrics['card']}" if self.metrics["card"] else ""
        return Page(f"Certificates of {self.model}{card}", f"{said[0][:1].upper()}{said[0][1:]}.", [*blocks, *weights])

    def _persistence(self) -> list[str]:
        """Return why nothing is expected by the law, where that is so."""
        expectation = self.metrics.get("expectation")
        if expectation is None or expectation["shown"] == "law":
            return []
        tried = expectation["rehearsal"]
        if tried is None:
            return ["expected: nothing by the law of dispersion, which takes a text of 256 tokens to be rehearsed on"]
        error = tried["mean_absolute_error"]
        return [
            "expected: that heads stay as they are (persistence); the law of dispersion does not pass its rehearsal on "
            f"this text (from {tried['fitted_up_to']} to {tried['target']} tokens: mean error of a head "
            f"{error['law']:.2f} nats, persistence {error['persistence']:.2f}, line {error['line']:.2f}; rank "
            f"correlation of the heads' changes {tried['rate_agreement']['law']:.2f})"
        ]

    def _expected(self, weight: str) -> list[float]:
        """Return log10 of the size at which each head that holds the weight now is expected to hold it no more."""
        sizes = [(h.get("expected_log10_n") or {}).get(weight) for h in self.metrics["heads"]]
        known = [NEVER if size == "never" else float(size) for size in sizes if size is not None]
        return [size for size in known if size > np.log10(self.metrics["length"]) + 1e-6]

    def _spreads(self, kind: str) -> list[float]:
        # Text passes by the heads that read images.
        return [h[f"{kind}_spread"] for h in self.metrics["heads"] if h[f"{kind}_spread"] is not None]

    def _sizes(self, kind: str, weight: str) -> list[float]:
        """Return the logarithm to base 10 of each head's size."""
        return [h[f"{kind}_log10_n"][weight] for h in self.metrics["heads"] if h[f"{kind}_spread"] is not None]


def certify(
    model: str | LoadedModel,
    *,
    text: str | Path | None = None,
    length: int | None = None,
    card: str | Path | None = None,
    out: str | Path = defaults.OUT,
    device: str | None = None,
    accept_license: bool = False,
    quiet: bool = False,
) -> CertificationResult:
    """Certify every head of a model, and measure its spread on a text.

    Args:
        model: a built-in name, a local folder, a hub name, or a loaded model.
        text: a file to measure on; Python's own source code unless given.
        length: how many tokens of it; 512, or as many as the text and the model hold, unless given.
        card: certify the model as sharpened by this card, and measure it so; in a folder of its own.
        device: where to run; the processor unless given.
        quiet: say nothing while it works.

    Raises:
        ValueError: no such model, device, task or file, an option out of its range, or a card that extends the context:
            a proof is of the model's own positions; before any work.
        NotImplementedError: a model that attends in a way that cannot be reached.

    >>> print(certify("smollm2").summary())  # doctest: +SKIP
    """
    if length is not None and not is_count(length, least=2):
        raise ValueError(f"expected a length of 2 tokens or more, got {length!r}")
    if not isinstance(text, str | Path | None):
        raise TypeError(f"expected the path of one text, got {short(text)}")
    called = name_of(model)
    policy = Constant(1.0) if card is None else card_for(called, card).policy_alone(card)
    content = source_code() if text is None else read_texts([text])
    with shown(quiet=quiet):
        loaded = loaded_model(model, accept_license, device)
        tokens = loaded.tokens(content).shape[1]
        if tokens < 2 or not content.strip():
            raise ValueError(f"expected a text of 2 tokens or more to measure on, got {tokens}")
        if length is None:
            length = min(defaults.CERTIFIED_LENGTH, loaded.context, tokens)
        checked_lengths(loaded, [length])
        if length > tokens:
            raise ValueError(f"the text has {tokens} tokens, fewer than the length {length}")
        config = {"seed": None, "model": called, "text": None if text is None else str(text), "length": length}
        config["card"] = None if card is None else str(card)
        if device is not None:
            config["device"] = device
        name = run_name(called)
        if card is not None:  # by what it says: an edited card gets another folder
            name = f"{name}-{run_name(Path(card).stem)}-{digest(policy_to_json(policy))[:8]}"
        folder = RunFolder.planned(out, "certify", name, config)
        attention_layers(loaded.model)  # refuses a family that cannot be reached, before a word is said
        say_estimate(seconds_per_token(loaded) * length * (1 + SPREADS), str(loaded.model.device))
        with stage("certifying heads"):
            certificates = certify_heads(loaded, content, length=length, policy=policy)
        folder.begin()
        # Where projections are zero, so is the bound, and every row is as wide as that.
        ratios = [
            c.measured_spread / c.proved_spread if c.proved_spread else float(c.measured_spread > 0)
            for c in certificates
            if c.measured_spread is not None
        ]
        heads, expectation = [c.to_json() for c in certificates], None
        if card is None and loaded.model.main_input_name == "input_ids":
            with stage("expecting by the law"):
                expected, rehearsal = expected_sizes(loaded, content, length)
            rehearsed = None if rehearsal is None else rehearsal.to_json()
            expectation = {"shown": "persistence" if expected is None else "law", "rehearsal": rehearsed}
            if expected is not None:
                for head in heads:
                    head["expected_log10_n"] = {w: _log10(n[head["layer"], head["head"]]) for w, n in expected.items()}
        metrics = {
            "heads": heads,
            "expectation": expectation,
            "unwritten": unwritten(loaded, content),
            "largest_share_of_bound": float(np.max(ratios)),
            "file": str(folder.path / "metrics.json"),
        }
        folder.finish(metrics)
    return CertificationResult({**metrics, "length": length, "card": config["card"]}, folder.path, called)


def _log10(size: float) -> float | str | None:
    """Return log10 of a size as JSON: "never" for one that is not reached, None for a head that was not observed."""
    if np.isnan(size):
        return None
    return "never" if np.isinf(size) else round(float(np.log10(size)), 6)


def _size(log10: float) -> str:
    """Return a number of tokens from its logarithm, as people read it.

    >>> _size(2.9), _size(10.1), _size(1657.4)
    ('790', '10^10', '10^1657')
    """
    if log10 == NEVER:
        return "never"
    return f"{float(f'{10**log10:.2g}'):,.0f}" if log10 < 7 else f"10^{log10:.0f}"
