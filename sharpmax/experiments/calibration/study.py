"""Compute the study a step at a time: every fit, every choice and every judgement, each kept once computed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from sharpmax.core.cards import Card, policy_from_json, policy_to_json
from sharpmax.core.policies import Policy
from sharpmax.defaults import FIT_TASKS, TRUTH
from sharpmax.experiments.calibration.plan import FRESH, READ, Plan
from sharpmax.extras import extra
from sharpmax.hf.calibration.choose import choose, score
from sharpmax.hf.calibration.descent import Recipe
from sharpmax.hf.calibration.exams import MORE_TEXT, held_out_exam, selection_exam, spread
from sharpmax.hf.calibration.fitting_data import fitting_questions, fitting_texts, recipe_for
from sharpmax.hf.calibration.judge import TEXT, Exam, Sheet, compare, sit
from sharpmax.hf.calibration.learn import learn_side_by_side
from sharpmax.hf.calibration.rivals import RATES, Rival, learn_rival
from sharpmax.hf.calibration.splits import KINDS, proposals_of, text_of, unseen_kind
from sharpmax.hf.models.load import LoadedModel
from sharpmax.runs.progress import report_as
from sharpmax.runs.run_folder import RunFolder

with extra("hf"):
    import torch
    from torch import Tensor

told = report_as("calibration")


class Study:
    """One model, one folder: every fit and every judgement by name, each computed once."""

    def __init__(
        self, plan: Plan, loaded: LoadedModel, folder: RunFolder, *, together: int, proposals: str | Path | None
    ) -> None:
        self.plan, self.loaded, self.folder, self.proposals = plan, loaded, folder, proposals
        self.exam: dict[str, Any] = {"prompts": plan.prompts, "together": together}
        self._exams, self._texts = cache(self._draw_exams), cache(self._read)

    def judged(self, name: str) -> bool:
        """Tell whether a step is on disk."""
        return self.folder.has(f"judge-{name}")

    def step(self, name: str) -> Any:
        """Return one step of the study."""
        if name in self.plan.fits:
            return self._learned(name)
        if name in self.plan.rules:
            return self._judged(name, partial(self._sit, self.plan.rules[name]), FRESH, self.plan.rival)
        if name in self.plan.loras:
            return self._once(f"judge-{name}", lambda: self._lora(self.plan.loras[name]))
        policy = self._choice(name.removeprefix("transfer-"))["policy"]
        if policy is None:
            return {"chosen": None}
        return self._judged(name, partial(self._sit, policy_from_json(policy)), FRESH, self.plan.transfer)

    def pooled(self, found: dict[str, Any]) -> Any:
        """Return the answers of all seeds as one comparison, and the largest rise of perplexity of any."""
        chosen = [name for name in self.plan.seeds if found[name]["chosen"] is not None]
        if not chosen:
            return {"chosen": []}
        plain = _joined([self._plain(self.plan.asked_of(name), self.plan.main)[0] for name in chosen])
        policy = _joined([found[name]["records"][0] for name in chosen])
        windows = found[chosen[0]]["text"]
        rises = {w: max(found[name]["text"][w]["perplexity_rise"] for name in chosen) for w in windows}
        return {"chosen": chosen, "tasks": compare(plain, policy).to_json()["tasks"], "worst_rise": rises}

    def write_card(self) -> str | None:
        """Write the card of the seed that the selection split likes best, of those whose text was judged allowed.

        Returns that seed's name; None if there is none.
        """
        choices = {name: self._choice(name) for name in self.plan.seeds}
        kept = {
            name: choice["scores"][choice["name"]]["answer_loss"]
            for name, choice in choices.items()
            if choice["policy"] is not None and _worst_rise(self.step(name)) <= self.plan.most_rise
        }
        if not kept:
            return None
        best = min(kept, key=kept.__getitem__)
        judged = {key: value for key, value in self.step(best).items() if key not in ("records", "chosen")}
        data = f"{', '.join(FIT_TASKS)} of {self.plan.fit_sizes[0]} to {self.plan.fit_sizes[1]} entries, {best}"
        notes = f"learn: {choices[best]['name']}"
        policy = policy_from_json(choices[best]["policy"])
        Card(policy, self.loaded.name, data, held_out=judged, notes=notes).save(self.folder.path / "card.json")
        return best

    def _learned(self, name: str) -> Any:
        """Judge a fit, or what the selection split chose to keep of it."""
        asked = self.plan.asked_of(name)
        if name not in self.plan.chosen:
            return self._judged(name, partial(self._sit, self._fitted(name)), asked, self.plan.rival)
        choice = self._choice(name)
        if choice["policy"] is None:
            return {"chosen": None}
        policy = policy_from_json(choice["policy"])
        return {"chosen": choice["name"], **self._judged(name, partial(self._sit, policy), asked, self.plan.main)}

    def _fitted(self, name: str) -> Any:
        """Return a fit; all are made side by side, in one descent."""
        recipes = {name: self._recipe(name) for name in self.plan.fits}

        def fits() -> Any:
            draws = [self._draw(name) for name in self.plan.fits]
            texts, keep = fitting_texts(self.loaded), self.folder.path / "fits.safetensors"
            found = learn_side_by_side(self.loaded, draws, texts, list(recipes.values()), keep=keep)
            return {
                name: {"policy": policy_to_json(fit.policy), "recipe": asdict(recipe), "course": fit.course._asdict()}
                for (name, recipe), fit in zip(recipes.items(), found, strict=True)
            }

        return policy_from_json(self._once("fits", fits)[name]["policy"])

    def _choice(self, name: str) -> Any:
        """Return what the selection split chooses to keep of a fit."""

        def chosen() -> Any:
            fit = self.plan.fits[name]
            exam = self._selection(fit.get("tasks", FIT_TASKS), fit.get("seed", 0))
            choice = choose(self.loaded, self._fitted(name), exam, most_rise=self.plan.most_rise)
            kept = None if choice.policy is None else policy_to_json(choice.policy)
            return {"name": choice.name, "scores": choice.scores, "policy": kept}

        return self._once(f"choose-{name}", chosen)

    def _selection(self, tasks: Sequence[str], seed: int) -> Exam:
        exam = selection_exam(self.loaded, tasks, self.plan.fit_sizes[-1], seed, {**self.exam, "windows": ()})
        return replace(exam, texts=self._texts("choose"), windows=self.plan.windows)

    def _lora(self, rate: float) -> Any:
        """Fit a LoRA on the same data by the same recipe; score it on the selection split, and judge it alike.

        It is not kept, so what it does to other tasks (`transfer`) is judged in the same step.
        """
        recipe = self._recipe("seed0")
        draw, texts = self._draw("seed0"), fitting_texts(self.loaded)
        rival = learn_rival(self.loaded, "lora", draw, texts, recipe, faster=rate / RATES["lora"]).rival
        exam = self._selection(FIT_TASKS, 0)
        scored = score(sit(self.loaded, exam), sit(self.loaded, exam, rival))
        exams = (self.plan.rival, self.plan.transfer)
        judged, elsewhere = (self._compared(partial(self._sit, rival), FRESH, asked) for asked in exams)
        return {"numbers": rival.count, "rate": rate, "score": scored, **judged, "transfer": elsewhere}

    def _recipe(self, name: str) -> Recipe:
        plan, tokens = self.plan, self.plan.windows[-1] // 2
        fields = {key: value for key, value in plan.fits[name].items() if key not in ("tasks", "before")}
        recipe = recipe_for(plan.most_rise, steps=plan.steps, windows=plan.windows, text_tokens=tokens, truth=TRUTH)
        return replace(recipe, **fields)

    def _draw(self, name: str) -> Any:
        plan, fit = self.plan, self.plan.fits[name]
        tasks, seed = fit.get("tasks", FIT_TASKS), fit.get("seed", 0)
        # Without text before, as many questions per step as with it: runs side by side ask equally many.
        before = fit.get("before", text_of("fit"))
        return fitting_questions(tasks, plan.fit_sizes, seed, plan.questions, before=before, most=plan.text_before)

    def _sit(self, policy: Policy | Rival, exam: Exam) -> Sheet:
        return sit(self.loaded, exam, policy)

    def _judged(self, name: str, take: Callable[[Exam], Sheet], seed: int, asked: Any) -> Any:
        return self._once(f"judge-{name}", lambda: self._compared(take, seed, asked))

    def _compared(self, take: Callable[[Exam], Sheet], seed: int, asked: Any) -> Any:
        """Return the judgement on questions and text, on the unseen kind, and the records of every item."""
        plain = [Sheet.from_json(sheet) for sheet in self._plain(seed, asked)]
        sheets = [take(exam).rounded() for exam in self._exams(seed, asked)]
        found = [compare(before, after).to_json() for before, after in zip(plain, sheets, strict=True)]
        return {**found[0], "unseen": found[1]["text"], "records": [sheet.to_json() for sheet in sheets]}

    def _plain(self, seed: int, asked: Any) -> Any:
        key = next(name for name in ("main", "rival", "transfer") if getattr(self.plan, name) == asked)

        def compute() -> Any:
            return [sit(self.loaded, exam).rounded().to_json() for exam in self._exams(seed, asked)]

        return self._once(f"plain-{key}-seed{seed}", compute)

    def _draw_exams(self, seed: int, asked: Any) -> list[Exam]:
        tasks, sizes, windows = asked
        asked = held_out_exam(self.loaded, tasks=tasks, sizes=sizes, windows=(), seed=seed, **self.exam)
        texts = self._texts("report") if windows else {}
        unseen = {TEXT: texts["unseen"]} if windows else {}
        judged = {kind: ids for kind, ids in texts.items() if kind != "unseen"}
        return [replace(asked, texts=judged, windows=windows), Exam({}, unseen, windows, asked.together)]

    def _read(self, split: str) -> dict[str, Tensor]:
        """Return the ids of every kind of text to choose or to report on; the latter where no report has read."""
        choosing, piece = split == "choose", max(self.plan.windows)
        tokens = self.plan.text_tokens
        tokens = min(self.plan.selection, MORE_TEXT * tokens) if choosing else tokens
        kinds = {kind: of(split) for kind, of in KINDS.items()} | ({} if choosing else {"unseen": unseen_kind()})
        ids = {kind: self.loaded.tokens(content) for kind, content in kinds.items()}
        texts = {kind: spread(i if choosing else i[:, READ.get(kind, 0) :], tokens, piece) for kind, i in ids.items()}
        if self.proposals is not None:
            prose, reference = self.loaded.tokens(proposals_of(split, self.proposals)), texts[TEXT]
            if choosing:
                more = spread(prose, tokens - reference.shape[1], piece)
                texts[TEXT] = torch.cat([reference, more], dim=1)
            else:
                texts |= {TEXT: spread(prose, tokens, piece), "reference": reference}
        return texts

    def _once(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return a step from disk, or compute it and say how long that took."""

        def timed() -> Any:
            began = time.perf_counter()
            value = compute()
            told(f"{name}: {time.perf_counter() - began:.1f} s")
            return value

        return self.folder.once(name, timed)


def _worst_rise(step: dict[str, Any]) -> float:
    return max(float(text["perplexity_rise"]) for text in step["text"].values())


def _joined(sheets: Sequence[Any]) -> Sheet:
    """Return the answers of several sheets (as JSON) as those of one."""
    read = [Sheet.from_json(sheet) for sheet in sheets]
    answers = {key: [a for sheet in read for a in sheet.answers[key]] for key in read[0].answers}
    return Sheet(answers, {}, sum(sheet.seconds for sheet in read))
