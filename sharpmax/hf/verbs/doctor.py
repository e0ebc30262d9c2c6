"""Go the whole way, from the symptom to a card or to "do not": `sharpmax doctor`.

    does it get worse with length?  ->  which heads disperse?  ->  does a card help, and what does it cost?  ->  use it

Every step is a verb of its own, whose folder is kept; this one asks them with small exams and gathers what they say.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax import defaults
from sharpmax.cards import SHIPPED
from sharpmax.core.cards import policy_to_json
from sharpmax.hf.calibration.judge import Verdict, must_take
from sharpmax.hf.diagnosis.heads import UNWRITTEN, must_read_text
from sharpmax.hf.models.identity import fingerprint
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.sharpen.extended import extended
from sharpmax.hf.sharpen.sidecar import card_for
from sharpmax.hf.verbs.calibrate import calibrate, given_up
from sharpmax.hf.verbs.certify import CertificationResult, certify
from sharpmax.hf.verbs.diagnose import DiagnosisResult, diagnose, symptom
from sharpmax.hf.verbs.evaluate import digest, evaluate
from sharpmax.hf.verbs.judgement import JudgedResult, reading_of, require_plain, verdict_lines
from sharpmax.hf.verbs.next_command import command
from sharpmax.hf.verbs.result import Result, loaded_model, name_of
from sharpmax.hf.verbs.sizes import usual_sizes
from sharpmax.runs.progress import say, shown
from sharpmax.runs.run_folder import RunFolder, run_name
from sharpmax.statistics import Paired

SIZES = (4, 8, 16, 32, 64)
"""Items of the questions that show the symptom."""
WELL = 0.9
"""The share of right answers, at the largest size, from which there is nothing to treat."""
EXAM = {name: defaults.QUICK[name] for name in ("sizes", "prompts", "windows", "text_tokens")}
"""What a card that is at hand is judged on: as much as `calibrate --quick` judges on."""
JUDGED_ON = (
    f"text was read in windows of {', '.join(map(str, EXAM['windows']))} tokens only, so what longer text costs is "
    "not known"
)


@dataclass(frozen=True)
class DoctorResult(Result):
    """The symptom, the heads, what is proved, and the judged card, if the model answers questions at all."""

    diagnosis: DiagnosisResult
    certification: CertificationResult | None
    judged: JudgedResult | None

    def summary(self) -> str:
        """Return one line or two per step, and the advice."""
        return "\n".join(f"{number}. {said}" for number, (_, said) in enumerate(self._steps(), 1))

    def next_step(self) -> str:
        """Return how to use the card, or what else to look at."""
        if self.judged is None or self.metrics["advice"] == "nothing to treat":
            return self.diagnosis.next_step()
        card, use = self.judged.card, self.judged.next_step()
        if self.metrics["advice"] == "use the card" and card not in SHIPPED and use.startswith("with "):
            remark = f"before you use it: text was read in short windows only. Then: {use}"
            return command("evaluate", self.model, {"card": card}, remark)
        return use

    def display(self) -> Any:
        """Return the figure of the last step that has one: where no candidate was worth judging, the diagnosis."""
        return (self.judged and self.judged.display()) or self.diagnosis.display()

    def page(self) -> Any:
        """Return the steps in their order, each with its table, and the card's figure."""
        from sharpmax.report.page import Drawn, Page, Text

        (_, seen), (_, heads), (_, proved), *rest = self._steps()
        blocks: list[Any] = [Text(seen, "1. The symptom")]
        blocks += [Text(heads, "2. The heads"), *_fastest(self.diagnosis), Text(f"All heads: {self.diagnosis['page']}")]
        blocks += [Text(proved, "3. What is seen and proved")]
        for number, (heading, said) in enumerate(rest, 4):
            blocks.append(Text(said, f"{number}. {heading}"))
            if heading == "A card, or not" and self.judged is not None and self.judged["judgement"] is not None:
                blocks += [block for block in self.judged.page().blocks if not isinstance(block, Text)]
            elif heading == "A card, or not":
                entropy = self.diagnosis.dispersion.entropy
                first, last = (float(np.nanmean(entropy[..., at])) for at in (0, -1))
                takeaway = f"The mean entropy of all heads goes from {first:.2f} to {last:.2f} nats."
                blocks.append(Drawn("figure", self.display(), takeaway, "Entropy of each layer by length."))
        blocks += [Text(self.next_step(), "What to do next"), *([Text(self._weights())] if self._weights() else [])]
        return Page(f"sharpmax doctor {self.model}", f"{self.metrics['advice'].capitalize()}.", blocks)

    def _steps(self) -> list[tuple[str, str]]:
        """Return the heading and the words of each step."""
        right = self.diagnosis["right"] or {}
        said = ", ".join(f"{found['share']:.0%} at {size}" for size, found in right.items())
        task = self.diagnosis.metrics.get("task", "questions")
        asked = next((found["questions"] for found in right.values()), 0)
        worse = "".join(f" {_sentence(line)}" for line in symptom(right, "items"))
        seen = (
            f"Right answers to {task} by items: {said} ({asked} questions each).{worse}"
            if right
            else "This model answers no questions: no symptom is measured."
        )
        told = ("look first", "no head", UNWRITTEN)
        heads = [_sentence(line) for line in self.diagnosis.summary().splitlines() if line.startswith(told)]
        steps = [("The symptom", seen), ("The heads", " ".join(heads))]
        proof = self.certification
        known = [proof.summary().splitlines()[0], *proof.metrics.get("unwritten", ())] if proof is not None else []
        proved = " ".join(map(_sentence, known or [self.metrics["uncertified"]]))
        steps.append(("What is seen and proved", proved))
        if self.judged is None:
            return [*steps, ("A card, or not", "A card is judged by answers, and this model gives none.")]
        judged = self.judged.metrics
        given = given_up() if judged.get("quick") else JUDGED_ON
        if judged["judgement"] is None:
            return [
                *steps,
                ("A card, or not", f"{_sentence(self.judged.summary().splitlines()[0])} {_sentence(given)}"),
            ]
        verdict = " ".join(_sentence(line) for line in (*_answered(judged), *verdict_lines(judged), given))
        return [*steps, ("A card, or not", verdict), ("The cost", _sentence(reading_of(judged)))]


def doctor(
    model: str | LoadedModel,
    *,
    card: str | Path | None = None,
    task: str = "lookup",
    out: str | Path = defaults.OUT,
    seed: int = defaults.SEED,
    device: str | None = None,
    accept_license: bool = False,
    quiet: bool = False,
) -> DoctorResult:
    """Diagnose a model, certify it, and judge a card for it; one is fitted where none is given or shipped.

    Args:
        model: a built-in name, a local folder, a hub name, or a loaded model.
        card: a card to judge; the shipped one of that name unless given, or one that `calibrate(quick=True)` fits.
        task: what shows the symptom: lookup, needle, copy, maximum or residues.

    Returns:
        The result: `.summary()`, `.plot()` and `.save_page()`, and the verdict on the card.

    Raises:
        ValueError: no such model, device, task or file, a card that does not fit the model, or an option out of its
            range; before any work.
        NotImplementedError: a model that attends in a way that cannot be reached.

    >>> print(doctor("smollm2").summary())  # doctest: +SKIP
    """
    with shown(quiet=quiet):
        given = None if card is None else card_for(name_of(model), card)
        loaded = loaded_model(model, accept_license, device)
        require_plain(loaded)
        common: dict[str, Any] = {"out": out, "quiet": quiet}
        must_read_text(loaded)
        name = f"{run_name(loaded.name)}-{run_name(task)}-seed{seed}"
        if given is not None and card is not None:  # by what it says: another card is another run
            with extended(loaded, given.extension) as longer:
                must_take(longer, given.policy)
            name = f"{name}-{run_name(Path(card).stem)}-{digest(policy_to_json(given.policy))[:8]}"
        config = {"seed": seed, "model": loaded.name, "weights": fingerprint(loaded)}
        config |= {"task": task, "card": None if card is None else str(card)}
        folder = RunFolder.planned(out, "doctor", name, config)
        sizes = usual_sizes(loaded, [task], SIZES, "questions of sizes")
        say("step 1 and 2 of 4: the symptom and the heads")
        diagnosis = diagnose(loaded, task=task, lengths=sizes, seed=seed, **common)
        diagnosis.save_page()
        say("step 3 of 4: what is seen and proved")
        certification: CertificationResult | None = None
        uncertified: str | None = None
        try:
            certification = certify(loaded, out=Path(out) / "doctor", quiet=quiet)  # beside one of the user's own
        except NotImplementedError as error:  # not every family that can be reached has a proof
            uncertified = str(error)
        judged: JudgedResult | None = None
        if loaded.generates:
            chosen = card if card is not None else (loaded.name if loaded.name in SHIPPED else None)
            if chosen is None:
                say("step 4 of 4: fitting a card, and judging it")
                judged = calibrate(loaded, quick=True, seed=seed, **common)
            else:
                say(f"step 4 of 4: judging the card {chosen}")
                exam = EXAM | {"sizes": usual_sizes(loaded, defaults.EXAM_TASKS, EXAM["sizes"], "judged on sizes")}
                judged = evaluate(loaded, chosen, seed=seed, **common, **exam)
        folder.begin()
        metrics: dict[str, Any] = {"advice": _advice(diagnosis, judged), "right": diagnosis["right"]}
        metrics |= {"matters": diagnosis.metrics.get("matters"), "diagnosis": str(diagnosis.folder)}
        metrics |= {"certification": certification and str(certification.folder), "uncertified": uncertified}
        metrics |= {"judged": judged and str(judged.folder)}
        if judged is not None:
            metrics |= {"verdict": judged["verdict"], "card": judged["card"]}
        folder.finish(metrics)
    return DoctorResult(metrics, folder.path, loaded.name, diagnosis, certification, judged)


def _advice(diagnosis: DiagnosisResult, judged: JudgedResult | None) -> str:
    """Return what to do, in a few words."""
    if judged is None:
        return "no card: this model answers no questions that one could be judged by"
    right = list((diagnosis["right"] or {}).values())
    if right and right[-1]["share"] >= WELL:
        return "nothing to treat"
    return {
        Verdict.GAINS: "use the card",
        Verdict.UNDECIDED: "judge the card on more before you use it",
        Verdict.NO_GAIN: "do not sharpen this model",
    }[judged.verdict]


def _answered(judged: Mapping[str, Any]) -> list[str]:
    """Return the share of all right answers, plain and with the card, in words."""
    if not (overall := judged["judgement"]["answers_overall"]):
        return []
    right = Paired.from_json(overall["accuracy"])
    return [f"right answers: {right.plain:.0%} plain, {right.policy:.0%} with the card ({right.items} questions)"]


def _sentence(line: str) -> str:
    """Return a line as a sentence."""
    return f"{line[:1].upper()}{line[1:]}." if line else ""


def _fastest(diagnosis: DiagnosisResult) -> list[Any]:
    from sharpmax.report.page import Table

    losing = diagnosis.metrics.get("fastest_losing", [])[:5]
    rows = [
        [f"{h['layer']}.{h['head']}", f"{h['rate']:.2f}", f"{h['entropy_short']:.2f}", f"{h['entropy_long']:.2f}"]
        for h in losing
    ]
    header = ["layer.head", "dH / d log n", "entropy, shortest", "entropy, longest"]
    return [Table(header, rows, "The heads that lose sharpness fastest.")] if rows else []
