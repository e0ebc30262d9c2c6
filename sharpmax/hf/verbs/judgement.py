"""Judge a policy for `calibrate` and `evaluate`: check the options, compare with the plain model, say the verdict."""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sharpmax import defaults
from sharpmax.core.checks import is_count, short
from sharpmax.core.extension import Extension
from sharpmax.core.policies import Policy
from sharpmax.hf.calibration.judge import (
    LEAST_QUESTIONS,
    TEXT,
    Change,
    Exam,
    Judgement,
    Once,
    Sheet,
    Verdict,
    compare,
    name_of,
    sit,
)
from sharpmax.hf.calibration.reading_time import ReadingTime, reading_time
from sharpmax.hf.calibration.splits import text_of
from sharpmax.hf.models.head import require_known_head
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.sharpen.extended import extended
from sharpmax.hf.sharpen.switch import policy_on
from sharpmax.hf.verbs.next_command import USUAL, command
from sharpmax.hf.verbs.result import Result, loaded_model
from sharpmax.hf.verbs.sizes import usual_sizes
from sharpmax.statistics import Paired, points

MORE = 4
"""How many times the text, or the questions, are judged on next where a verdict is undecided."""


def loaded_generator(model: str | LoadedModel, accept_license: bool, device: str | None) -> LoadedModel:
    """Return the model, loaded if it is a name.

    Raises:
        ValueError: it gives no answers, or a policy is on: what is called plain would not be.
        NotImplementedError: it does more to its logits than `head` knows, so its losses would be another model's.
    """
    loaded = loaded_model(model, accept_license, device)
    if not loaded.generates:
        raise ValueError(f"{loaded.name} is not a causal language model: it gives no answers to judge")
    require_plain(loaded)
    require_known_head(loaded.model)
    return loaded


def require_plain(loaded: LoadedModel) -> None:
    """Raise ValueError if a policy or an extension is on: what is called plain would not be."""
    if (on := policy_on(loaded.model)) is not None:
        raise ValueError(
            f"{loaded.name} is sharpened by {short(on)}, and would be taken for the plain model: leave that block, or "
            "unsharpen(model), first"
        )


def check_exam(fitting: Mapping[str, Sequence[int]], seed: int, exam: Mapping[str, Any]) -> None:
    """Raise ValueError for a number that is too small or none, or a text that is not there, before any work."""
    asked = {name: exam[name] for name in ("sizes", "windows") if exam.get(name) is not None}
    asked |= {name: [exam[name]] for name in ("prompts", "text_tokens", "together") if name in exam}
    for name, values in {**fitting, **asked}.items():
        least = 2 if name == "windows" else 1  # a token alone has no next one to predict
        several = isinstance(values, Iterable)
        if not several or not values or not all(is_count(value, least=least) for value in values):
            got = ", ".join(map(str, values if several else [values])) or "none"
            raise ValueError(f"expected {name} of at least {least}, got {got}")
    if seed < 0:
        raise ValueError(f"expected a seed of at least 0, got {seed}")
    most_rise = exam.get("most_rise", defaults.MOST_RISE)
    if not 0 <= most_rise < math.inf:
        raise ValueError(f"expected most_rise, a share such as 0.005, of at least 0, got {most_rise}")
    if exam.get("text") is not None and not Path(exam["text"]).is_file():
        raise FileNotFoundError(f"there is no text file {exam['text']}")


def quick_exam(exam: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a quick run judges on, but for what was asked for beside it."""
    names = ("sizes", "prompts", "text_tokens", "windows")
    return {name: defaults.QUICK[name] for name in names if exam.get(name) is None}


def keep_sizes_that_fit(loaded: LoadedModel, exam: dict[str, Any], *, asked: bool) -> None:
    """Leave out of an exam's usual sizes those that the model does not hold; where they were `asked` for, all stay."""
    sizes = exam.get("sizes", defaults.EXAM_SIZES)
    if not asked:
        held = usual_sizes(loaded, exam.get("tasks", defaults.EXAM_TASKS), sizes, "--sizes")
        if tuple(held) != tuple(sizes):
            exam["sizes"] = held


def text_found(loaded: LoadedModel, exam: Mapping[str, Any], held_out: Exam) -> dict[str, Any] | None:
    """Return what a user's own text gave to judge on: tokens, and how many were asked for; None without a text."""
    if exam.get("text") is None or not held_out.texts:
        return None
    whole = text_of("report", exam["text"])
    asked, found = exam.get("text_tokens", defaults.TEXT_TOKENS), held_out.texts[TEXT].shape[1]
    windows = ", ".join(f"{found // window} of {window:,}" for window in held_out.windows)
    said = (
        f"{exam['text']}: a third of it is judged on, the rest is to fit and choose on; that gives {found:,} tokens "
        f"(windows: {windows}); {asked:,} were asked for"
    )
    told: dict[str, Any] = {"asked": asked, "found": found, "said": said, "all_read": found < asked}
    if len(whole):
        told["characters_per_token"] = round(len(whole) / max(1, loaded.tokens(whole).shape[1]), 2)
    return told


def exam_config(exam: Mapping[str, Any]) -> dict[str, Any]:
    """Return an exam's options as they are recorded: a text by its path and its contents."""
    whole = {"text": None, **USUAL, **exam}  # the same run, whether what is usual was typed or not
    options = {name: str(value) if isinstance(value, Path) else value for name, value in whole.items()}
    if exam.get("text") is not None:
        options["text_sha256"] = hashlib.sha256(Path(exam["text"]).read_bytes()).hexdigest()
    return options


def judge(
    loaded: LoadedModel,
    policy: Policy | Change | None,
    exam: Exam,
    most_rise: float,
    once: Once,
    extension: Extension | None = None,
) -> dict[str, Any]:
    """Return the metrics of a policy on an exam; without a policy there is no gain. `once` keeps the parts.

    Under an extension the judgement is beside the extension alone, and `whole` beside the model as it is.
    """
    told = {} if extension is None else {"extension": extension.to_json(), "whole": None}
    if policy is None:
        return {"judgement": None, "verdict": Verdict.NO_GAIN, **told}

    def taken(of: LoadedModel, who: str, with_policy: Policy | Change | None) -> Sheet:
        return sit(of, exam, with_policy, once=lambda key, of: once(f"{who}-{key}", of), name=f"judge: {who}")

    with extended(loaded, extension) as longer:
        plain, sharpened = taken(longer, "plain", None), taken(longer, "policy", policy)
        time = once("reading-time", lambda: reading_time(longer, exam, policy).to_json())
    if extension is not None:
        unextended = taken(replace(loaded, extended_context=extension.context), "unextended", None)
        told["whole"] = compare(unextended, sharpened).to_json()
    judgement = compare(plain, sharpened)
    return {
        **told,
        "judgement": judgement.to_json(),
        "reading_time": time,
        "most_rise": most_rise,
        "worst_rise": judgement.worst_rise,
        "undecided": [name_of(*key) for key in judgement.undecided(most_rise)],
        "verdict": judgement.verdict(most_rise),
    }


def summary_of(metrics: Mapping[str, Any]) -> str:
    """Return a judgement in words: the verdict, which follows from the comparisons, stands last."""
    judgement = metrics["judgement"]
    if judgement is None:
        return "no candidate was better on the selection split; the model stays as it is, and no card was written"
    lines = []
    for task, sizes in judgement["tasks"].items():
        for size, found in sizes.items():
            right, loss = (Paired.from_json(found[name]) for name in ("accuracy", "loss"))
            lines.append(
                f"{task:16} {size:>5}: right {right.plain:6.1%} -> {right.policy:6.1%} "
                f"({points(*right.interval_of_shares)} points; p = {right.p_value:.2g}), "
                f"loss {loss.plain:.3f} -> {loss.policy:.3f} (p = {loss.p_value:.2g})"
            )
    for name, found in judgement["text"].items():
        lines.append(f"{spelled(name)}: perplexity {found['perplexity_rise']:+.2%} ({_interval(found)})")
    lines.append("in brackets: 95 % intervals of the differences")
    if metrics.get("whole"):
        lines += _whole_lines(metrics)
    lines.append(reading_of(metrics))
    return "\n".join([*lines, *verdict_lines(metrics)])


def _whole_lines(metrics: Mapping[str, Any]) -> list[str]:
    """Return what extension and policy do together, beside the model as it is, in words."""
    extension, whole = metrics["extension"], metrics["whole"]
    told = [f"all of this beside {extension['type']} alone; beside the model as it is, the two together:"]
    if whole["answers_overall"]:
        right = whole["answers_overall"]["accuracy"]
        told.append(f"  all answers: right {right['plain']:.1%} -> {right['policy']:.1%} (p = {right['p_value']:.2g})")
    for name, found in whole["text"].items():
        told.append(f"  {spelled(name)}: perplexity {found['perplexity_rise']:+.2%} ({_interval(found)})")
    short = [
        name
        for name, found in whole["text"].items()
        if int(name.rpartition(" ")[2]) <= extension["trained"] and found["perplexity_rise"] > metrics["most_rise"]
    ]
    if short:
        places = ", ".join(spelled(name) for name in short)
        told.append(f"  short text pays for the extension ({places}): serve short requests without the card")
    return told


def verdict_lines(metrics: Mapping[str, Any]) -> list[str]:
    """Return the verdict in words, one fact per line."""
    judged, most_rise = Judgement.from_json(metrics["judgement"]), metrics["most_rise"]
    card = metrics["card"]
    merged = metrics.get("merged")
    kept = f"merged model: {merged}" if merged else "no card was written" if card is None else f"card: {card}"
    verdict, allowed = judged.verdict(most_rise), f"the allowed {most_rise:+.2%}"
    if verdict == Verdict.GAINS:
        return [f"it gains; {kept}"]
    if verdict == Verdict.UNDECIDED and judged.too_few:
        asked = judged.overall[0].items if judged.overall else 0
        return [f"no verdict: {asked} questions were asked, and a verdict needs {LEAST_QUESTIONS} (--prompts)", kept]
    if verdict == Verdict.UNDECIDED:
        places = ", ".join(spelled(name_of(*key)) for key in judged.undecided(most_rise))
        return [
            f"undecided: answers gain; whether perplexity rises within {allowed} cannot be told of {places}",
            f"{_more_text(metrics)}; {kept}",
        ]
    without = "no card was written" if card is None else f"better without {card}"
    alone = ["answers are no better; their loss alone falls"] if judged.loss_alone else []
    return [*alone, f"it does not gain with perplexity within {allowed}; {without}"]


def _more_text(metrics: Mapping[str, Any]) -> str:
    """Say what would decide: more tokens of the text, or a longer text where all of it is read."""
    own = metrics.get("own_text")
    if not own or not own["all_read"]:
        return "more text would tell (--text-tokens)"
    kilobytes = _missing_characters(metrics) / 1000
    return (
        f"a longer text would tell: this one gave {own['found']:,} tokens to judge on, a third of what it has; give "
        f"about {kilobytes:,.0f} kB more"
    )


def _missing_characters(metrics: Mapping[str, Any]) -> float:
    """Return how much longer a text should be for four times the windows: half the interval. A third is judged on."""
    own = metrics["own_text"]
    return 3 * (MORE - 1) * float(own["found"]) * float(own.get("characters_per_token", 4.0))


def reading_of(metrics: Mapping[str, Any]) -> str:
    """Say what the policy costs to run; of an early record, which has no spread, the ratio alone."""
    if "reading_time" in metrics:
        return str(ReadingTime(**metrics["reading_time"]))
    return f"reading takes {metrics['time_ratio']:.2f}x as long with the policy (medians of 5 turns)"


def spelled(name: str) -> str:
    """Return what `name_of` named, in words."""
    kind, _, window = name.rpartition(" ")
    return f"{kind or TEXT} in windows of {window}"


def _interval(found: Mapping[str, Any]) -> str:
    low, high = map(math.expm1, Paired.from_json(found).interval)
    return "one window: no interval" if math.isinf(high) else f"{low:+.2%} to {high:+.2%}; {found['items']} windows"


@dataclass(frozen=True)
class JudgedResult(Result):
    """A judged policy: `verdict`, `card`, and the comparison with the plain model."""

    @property
    def verdict(self) -> Verdict:
        """Whether it gains."""
        return Verdict(self.metrics["verdict"])

    @property
    def card(self) -> str | None:
        """The path of the card; None if none was written."""
        card: str | None = self.metrics["card"]
        return card

    def summary(self) -> str:
        """Return every comparison, its interval, and the verdict."""
        return summary_of(self.metrics)

    def display(self) -> Any:
        """Return right answers by size, plain and with the policy; None where nothing was asked or judged."""
        from sharpmax.report.judgement import answers_display

        judgement = self.metrics["judgement"]
        return answers_display(judgement, self.model) if judgement and judgement["tasks"] else None

    def page(self) -> Any:
        """Return the verdict, the figure, both tables and what to do next."""
        from sharpmax.report.judgement import judgement_page

        verdict = summary_of(self.metrics) if self.metrics["judgement"] is None else verdict_lines(self.metrics)[0]
        return judgement_page(
            self.metrics["judgement"],
            self.display(),
            title=f"{self._title()} {self.model}",
            verdict=verdict,
            cost=None if self.metrics["judgement"] is None else reading_of(self.metrics),
            next_step=self.next_step(),
            weights=self._weights(),
        )

    def next_step(self) -> str:
        """Return what to type next: use the card, judge it on more, or leave the model as it is."""
        if self.metrics.get("merged"):
            return f'sharpmax.hf.load("{self.metrics["merged"]}"), or any library that reads a folder of transformers'
        if self.card is None:
            remark = "no temperature helps here; see which heads disperse"
            return command("diagnose", self.model, {}, remark)
        if self.verdict == Verdict.GAINS:
            use = f'with sharpmax.hf.sharpen(model, "{self.card}"): ...'
            options = dict(self.metrics.get("options", {}))
            if not (options.pop("quick", False) or self.metrics.get("quick")):
                return use
            read = ", ".join(map(str, options.pop("windows", defaults.QUICK["windows"])))
            remark = f"before you use it: --quick read text in windows of {read} tokens only. Then: {use}"
            return command("evaluate", self.model, {"card": self.card, **options}, remark)
        if self.verdict == Verdict.NO_GAIN:
            remark = f"fits a card to {self.model}; or leave the model as it is"
            return command("calibrate", self.model, {"quick": True}, remark)
        return self._decide()

    def _decide(self) -> str:
        """Return the command that judges the same on more, with the options that were given."""
        metrics = self.metrics
        options = {"card": self.card, **metrics.get("options", {})}
        quick, own = options.pop("quick", False) or metrics.get("quick"), metrics.get("own_text")
        usual = defaults.QUICK if quick else {"prompts": defaults.PROMPTS, "text_tokens": defaults.TEXT_TOKENS}
        remark, more = "to decide it", 1.0
        if Judgement.from_json(metrics["judgement"]).too_few:
            options["prompts"] = max(2 * LEAST_QUESTIONS, MORE * options.get("prompts", usual["prompts"]))
        elif own and own["all_read"]:
            remark = f"with about {_missing_characters(metrics) / 1000:,.0f} kB more in {options['text']}"
        else:
            tokens = options.get("text_tokens", usual["text_tokens"])
            options["text_tokens"] = max(MORE * tokens, defaults.TEXT_TOKENS)
            more = options["text_tokens"] / tokens
        seconds = metrics.get("seconds")
        return command("evaluate", self.model, options, remark, None if seconds is None else max(MORE, more) * seconds)

    def _title(self) -> str:
        return "A policy for"
