"""Judge a policy for `calibrate` and `evaluate`: check the options, compare with the plain model, print the verdict."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sharpmax import defaults
from sharpmax.core.policies import Policy
from sharpmax.hf.calibration.judge import TEXT, TURNS, Exam, Judgement, Verdict, compare, name_of, sit, time_ratio
from sharpmax.hf.models.load import LoadedModel, load
from sharpmax.statistics import Paired


def loaded_generator(model: str | LoadedModel, accept_license: bool, device: str | None) -> LoadedModel:
    """Return the model, loaded if it is a name, or raise ValueError if it gives no answers."""
    loaded = model if isinstance(model, LoadedModel) else load(model, accept_license=accept_license, device=device)
    if not loaded.generates:
        raise ValueError(f"{loaded.name} is not a causal language model: there are no answers to calibrate it on")
    return loaded


def check_exam(fitting: Mapping[str, Sequence[int]], seed: int, exam: Mapping[str, Any]) -> None:
    """Raise ValueError for a number that is too small or none, or a text that is not there, before any work."""
    asked = {name: exam[name] for name in ("sizes", "windows") if exam.get(name) is not None}
    asked |= {name: [exam[name]] for name in ("prompts", "text_tokens", "together") if name in exam}
    for name, values in {**fitting, **asked}.items():
        least = 2 if name == "windows" else 1  # a token alone has no next one to predict
        if not values or min(values) < least:
            raise ValueError(f"expected {name} of at least {least}, got {', '.join(map(str, values)) or 'none'}")
    if seed < 0:
        raise ValueError(f"expected a seed of at least 0, got {seed}")
    most_rise = exam.get("most_rise", defaults.MOST_RISE)
    if not 0 <= most_rise < math.inf:
        raise ValueError(f"expected most_rise, a share such as 0.005, of at least 0, got {most_rise}")
    if exam.get("text") is not None and not Path(exam["text"]).is_file():
        raise FileNotFoundError(f"there is no text file {exam['text']}")


def exam_config(exam: Mapping[str, Any]) -> dict[str, Any]:
    """Return an exam's options as they are recorded: a text by its path and its contents."""
    options = {name: str(value) if isinstance(value, Path) else value for name, value in exam.items()}
    if exam.get("text") is not None:
        options["text_sha256"] = hashlib.sha256(Path(exam["text"]).read_bytes()).hexdigest()
    return options


def judge(loaded: LoadedModel, policy: Policy | None, exam: Exam, most_rise: float) -> dict[str, Any]:
    """Return the metrics of a policy on an exam; without a policy there is no gain."""
    if policy is None:
        return {"judgement": None, "verdict": Verdict.NO_GAIN}
    judgement = compare(sit(loaded, exam), sit(loaded, exam, policy))
    return {
        "judgement": judgement.to_json(),
        "time_ratio": time_ratio(loaded, exam, policy),
        "most_rise": most_rise,
        "worst_rise": judgement.worst_rise,
        "undecided": [name_of(*key) for key in judgement.undecided(most_rise)],
        "verdict": judgement.verdict(most_rise),
    }


def print_judgement(metrics: dict[str, Any]) -> None:
    """Print a judgement: every comparison, its test, and the verdict, which follows from them."""
    judgement = metrics["judgement"]
    if judgement is None:
        print("no candidate was better on the selection split; the model stays as it is, and no card was written")
        return
    for task, sizes in judgement["tasks"].items():
        for size, found in sizes.items():
            right, loss = (Paired.from_json(found[name]) for name in ("accuracy", "loss"))
            low, high = (100 * end for end in right.interval_of_shares)
            print(
                f"{task:16} {size:>5}: right {right.plain:6.1%} -> {right.policy:6.1%} "
                f"({low:+.1f} to {high:+.1f} points; p = {right.p_value:.2g}), "
                f"loss {loss.plain:.3f} -> {loss.policy:.3f} (p = {loss.p_value:.2g})"
            )
    for name, found in judgement["text"].items():
        low, high = map(math.expm1, Paired.from_json(found).interval)
        ends = "one window: no interval" if math.isinf(high) else f"{low:+.2%} to {high:+.2%}; {found['items']} windows"
        print(f"{_spelled(name)}: perplexity {found['perplexity_rise']:+.2%} ({ends})")
    print("in brackets: 95 % intervals of the differences")
    print(f"reading takes {metrics['time_ratio']:.2f}x as long with the policy (medians of {TURNS} turns)")
    judged, most_rise, card = Judgement.from_json(judgement), metrics["most_rise"], metrics["card"]
    verdict, allowed = judged.verdict(most_rise), f"the allowed {most_rise:+.2%}"
    if verdict == Verdict.GAINS:
        print(f"it gains; card: {card}")
    elif verdict == Verdict.UNDECIDED:
        places = ", ".join(_spelled(name_of(*key)) for key in judged.undecided(most_rise))
        print(f"undecided: answers gain; whether perplexity rises within {allowed} cannot be told of {places}")
        print(f"more text would tell (--text-tokens); {'no card was written' if card is None else f'card: {card}'}")
    else:
        what_follows = "no card was written" if card is None else f"better without {card}"
        print(f"it does not gain with perplexity within {allowed}; {what_follows}")


def _spelled(name: str) -> str:
    """Return what `name_of` named, in words."""
    kind, _, window = name.rpartition(" ")
    return f"{kind or TEXT} in windows of {window}"
