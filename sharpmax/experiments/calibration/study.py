"""What a learned policy is worth, and where it is not: the whole comparison, a step at a time, each kept once computed.

Claim (ours): 810 numbers, fitted on lookups of at most 32 entries, take a frozen SmolLM2 to 75 % at 128 entries and
60 % at 256, for at most 0.5 % of perplexity at 256, 1,024 and 4,096 tokens of each of three kinds of text: prose on
Python, source code, NumPy's docstrings, in parts that no fit, choice or earlier report saw. The prose is Python's
reference to fit on, and its enhancement proposals too to choose on; to report on only those, because there is no more
of the reference. What earlier reports read of that (`reference`), and PyTorch's docstrings, which nothing was fitted or
chosen on (`unseen`), are reported beside them. Then the honest part: the same card on other wordings and tasks, fitted
on a mixture, against the paper's rule, one global beta, b alone, and a LoRA fitted at equal cost, at the best of three
rates by the selection split; five seeds; and accuracy against perplexity as the price of text grows. What was found:
docs/guide-length.md.

Cost: some ten minutes on an H200, in bfloat16. A killed run continues:
    git clone https://github.com/python/peps && git -C peps checkout ba4deeb
    python -m sharpmax.experiments.calibration.study --device cuda --proposals peps/peps --out runs
    python -m sharpmax.experiments.calibration.study … --only seed0 seed1     (a part of it)
"""

import argparse
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sharpmax.core.cards import Card, policy_from_json, policy_to_json
from sharpmax.core.policies import PAPER, Constant, Policy
from sharpmax.experiments.calibration.table import by_kind, comparison, transfer
from sharpmax.hf.calibrate.choose import best_of, choose, score
from sharpmax.hf.calibrate.descent import Recipe
from sharpmax.hf.calibrate.exams import MORE_TEXT, held_out_exam, selection_exam, spread
from sharpmax.hf.calibrate.fitting_data import (
    FITTED_ON,
    FITTED_SIZES,
    STEPS,
    TEXT_BEFORE,
    TRUTH,
    fitting_questions,
    fitting_texts,
    recipe_for,
)
from sharpmax.hf.calibrate.judge import TEXT, Exam, Sheet, compare, sit
from sharpmax.hf.calibrate.learn import learn_side_by_side
from sharpmax.hf.calibrate.learn_lora import learn_lora
from sharpmax.hf.calibrate.splits import KINDS, proposals_of, text_of, unseen_kind
from sharpmax.hf.models.load import LoadedModel, load
from sharpmax.runs.run_folder import RunFolder

MOST_RISE = 0.005
SIZES, WINDOWS = (8, 16, 32, 64, 128, 256), (256, 1024, 4096)
MAIN = ("lookup",), SIZES, WINDOWS
"""Tasks, sizes and windows of the exam of what was chosen."""
RIVAL = ("lookup",), (32, 128, 256), WINDOWS
"""Of what is compared with it."""
TRANSFER = ("lookup:parcel", "lookup:table", "lookup:room", "needle", "copy", "maximum"), (32, 128), ()
"""Of what was not fitted."""
MIXTURE = ("lookup", "lookup:close", "lookup:price", "lookup:dial", "needle", "copy", "maximum")
SEEDS = tuple(f"seed{seed}" for seed in range(5))
PENALTIES = (1.0, 5.0, 100.0, 500.0)
FITS: dict[str, dict[str, Any]] = {
    **{name: {"seed": seed} for seed, name in enumerate(SEEDS)},
    **{f"penalty{penalty:g}": {"penalty": penalty, "allowed": None} for penalty in PENALTIES},
    "b-alone": {"learned": "b"},
    "mixture": {"tasks": MIXTURE},
    "divergence-alone": {"truth": 0.0},
    "no-text-before": {"before": ""},
}
"""Every fit by name, and what sets it apart from that of seed 0."""
CHOSEN = (*SEEDS, "mixture", "b-alone")
"""The fits of which the selection split chooses how much to keep; the others are judged as they are."""
FRESH = 60
"""The first seed of the questions to judge on. The way to choose was last changed when answers to those of seeds 0 to
4, 20 to 24 and 40 had been seen."""
READ = {"source": 65536, "docstrings": 65536, "unseen": 65536}
"""Tokens at the beginning of each kind of text to report on that earlier reports read; and all of the reference."""
RULES: dict[str, Policy] = {"paper": PAPER, **{f"beta{beta:g}": Constant(beta) for beta in (1.05, 1.1)}}
LORAS = {f"lora-{rate:g}": rate for rate in (2e-3, 5e-3, 1e-2)}
"""Their learning rates; `lora` is the one of them that the selection split likes best."""
SELECTION = 98304
"""Tokens of each kind of text to choose on, where it has as many: 24 windows of 4,096."""

log = logging.getLogger("sharpmax.experiments.calibration.study")  # also where this module is the program


def run(
    out: str | Path = "runs", *, model: str = "smollm2", device: str = "cuda", prompts: int = 200, steps: int = STEPS,
    questions: int = 8, text_tokens: int = 98304, together: int = 65536, proposals: str | Path | None = None,
    only: Sequence[str] = (), gather: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Compute every step that is not on disk yet (or only the named ones), and gather them.

    With `gather` nothing is judged any more: what is on disk makes the whole, and `absent` names what it lacks.
    """
    # In the order of what is asked first: a run may be cut short.
    seeds, others = ([name for name in FITS if (name in SEEDS) is seed] for seed in (True, False))
    names = [*seeds, *(f"transfer-{name}" for name in seeds), *RULES, *others, "transfer-mixture", *LORAS]
    unknown = sorted(set(only) - set(names))
    if unknown:
        raise ValueError(f"expected steps among {', '.join(names)}, got {', '.join(unknown)}")
    config = {"seed": 0, "model": model, "prompts": prompts, "steps": steps, "questions": questions}
    config |= {"text_tokens": text_tokens, "proposals": proposals is not None}
    place = (out, "calibration-study", Path(model).name, config)
    RunFolder.planned(*place)
    loaded = load(model, device=device)
    folder = RunFolder.open(*place)
    study = _Study(loaded, folder, config, together, proposals)
    absent = [name for name in names if gather and not study.judged(name)]
    if gather and set(absent) & set(SEEDS):
        raise ValueError(f"{folder.path} has no judgement of {', '.join(sorted(set(absent) & set(SEEDS)))} to gather")
    with _half(device):
        found = {name: study.step(name) for name in names if name not in absent and (not only or name in only)}
    rivals = {name: found[name]["score"] for name in LORAS if name in found}
    for name in rivals:
        found[f"transfer-{name}"] = found[name].pop("transfer")
    if not only:
        if rivals:
            best = best_of(rivals, most_rise=MOST_RISE)
            found |= {"lora": found.pop(best), "transfer-lora": found.pop(f"transfer-{best}")}
        found["seeds"] = study.pooled(found)
    # Each item's record stays in its step's file; the metrics are what is read.
    metrics: dict[str, Any] = {
        name: {key: value for key, value in step.items() if key != "records"} for name, step in found.items()
    }
    if not only:
        metrics["card"] = study.write_card()
    if absent:
        metrics["absent"] = absent
    folder.finish(metrics)
    if not only:
        from sharpmax.experiments.calibration.figures import save_figures

        save_figures(metrics, folder.figures)
    return metrics


def _half(device: str) -> AbstractContextManager[Any]:
    """Return a block in which a GPU multiplies in bfloat16, plain and sharpened alike; a processor stays exact."""
    torch.backends.cuda.matmul.allow_tf32 = True  # of the logits over the vocabulary, which stay float32
    return torch.autocast(device, torch.bfloat16) if device.startswith("cuda") else nullcontext()


class _Study:
    """One model, one folder: every fit and every judgement by name, each computed once."""

    def __init__(
        self, loaded: LoadedModel, folder: RunFolder, config: dict[str, Any], together: int, proposals: Any
    ) -> None:
        self.loaded, self.folder, self.proposals = loaded, folder, proposals
        self.steps, self.questions, self.text_tokens = (config[n] for n in ("steps", "questions", "text_tokens"))
        self.exam = {"prompts": config["prompts"], "together": together}
        self._exams, self._texts = cache(self._draw_exams), cache(self._read)

    def judged(self, name: str) -> bool:
        """Tell whether a step is on disk."""
        return (self.folder.path / "steps" / f"judge-{name}.json").exists()

    def step(self, name: str) -> Any:
        """Return one step of the study."""
        if name in FITS:
            return self._learned(name)
        if name in RULES:
            return self._judged(name, partial(self._sit, RULES[name]), FRESH, RIVAL)
        if name in LORAS:
            return self._once(f"judge-{name}", lambda: self._lora(LORAS[name]))
        policy = self._choice(name.removeprefix("transfer-"))["policy"]
        if policy is None:
            return {"chosen": None}
        return self._judged(name, partial(self._sit, policy_from_json(policy)), FRESH, TRANSFER)

    def pooled(self, found: dict[str, Any]) -> Any:
        """Return the answers of all seeds as one comparison, and the largest rise of perplexity of any."""
        chosen = [name for name in SEEDS if name in FITS and found[name]["chosen"] is not None]
        if not chosen:
            return {"chosen": []}
        plain = _joined([self._plain(_asked_of(name), MAIN)[0] for name in chosen])
        policy = _joined([found[name]["records"][0] for name in chosen])
        windows = found[chosen[0]]["text"]
        rises = {w: max(found[name]["text"][w]["perplexity_rise"] for name in chosen) for w in windows}
        return {"chosen": chosen, "tasks": compare(plain, policy).to_json()["tasks"], "worst_rise": rises}

    def write_card(self) -> str | None:
        """Write the card of the seed that the selection split likes best, of those whose text was judged allowed.

        Returns that seed's name; None if there is none.
        """
        choices = {name: self._choice(name) for name in SEEDS if name in FITS}
        kept = {
            name: choice["scores"][choice["name"]]["answer_loss"]
            for name, choice in choices.items()
            if choice["policy"] is not None and _worst_rise(self.step(name)) <= MOST_RISE
        }
        if not kept:
            return None
        best = min(kept, key=kept.__getitem__)
        judged = {key: value for key, value in self.step(best).items() if key not in ("records", "chosen")}
        data = f"{', '.join(FITTED_ON)} of {FITTED_SIZES[0]} to {FITTED_SIZES[1]} entries, {best}"
        notes = f"learn: {choices[best]['name']}"
        policy = policy_from_json(choices[best]["policy"])
        Card(policy, self.loaded.name, data, held_out=judged, notes=notes).save(self.folder.path / "card.json")
        return best

    def _learned(self, name: str) -> Any:
        """Judge a fit, or what the selection split chose to keep of it."""
        if name not in CHOSEN:
            return self._judged(name, partial(self._sit, self._fitted(name)), _asked_of(name), RIVAL)
        choice = self._choice(name)
        if choice["policy"] is None:
            return {"chosen": None}
        policy = policy_from_json(choice["policy"])
        return {"chosen": choice["name"], **self._judged(name, partial(self._sit, policy), _asked_of(name), MAIN)}

    def _fitted(self, name: str) -> Any:
        """Return a fit; all are made side by side, in one descent."""
        recipes = {name: self._recipe(name) for name in FITS}

        def fits() -> Any:
            draws = [self._draw(name) for name in FITS]
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
            exam = self._selection(FITS[name].get("tasks", FITTED_ON), FITS[name].get("seed", 0))
            choice = choose(self.loaded, self._fitted(name), exam, most_rise=MOST_RISE)
            kept = None if choice.policy is None else policy_to_json(choice.policy)
            return {"name": choice.name, "scores": choice.scores, "policy": kept}

        return self._once(f"choose-{name}", chosen)

    def _selection(self, tasks: Sequence[str], seed: int) -> Exam:
        exam = selection_exam(self.loaded, tasks, FITTED_SIZES[-1], seed, {**self.exam, "windows": ()})
        return replace(exam, texts=self._texts("choose"), windows=WINDOWS)

    def _lora(self, rate: float) -> Any:
        """Fit a LoRA on the same data by the same recipe; score it on the selection split, and judge it alike.

        It is not kept, so what it does to other tasks (`transfer`) is judged in the same step.
        """
        recipe = replace(self._recipe("seed0"), learning_rate=rate)
        rival, numbers = learn_lora(self.loaded, self._draw("seed0"), fitting_texts(self.loaded), recipe)
        exam = self._selection(FITTED_ON, 0)
        scored = score(sit(self.loaded, exam), sit(rival, exam))
        judged, elsewhere = (self._compared(partial(sit, rival), FRESH, asked) for asked in (RIVAL, TRANSFER))
        return {"numbers": numbers, "rate": rate, "score": scored, **judged, "transfer": elsewhere}

    def _recipe(self, name: str) -> Recipe:
        fields = {key: value for key, value in FITS[name].items() if key not in ("tasks", "before")}
        recipe = recipe_for(MOST_RISE, steps=self.steps, windows=WINDOWS, text_tokens=WINDOWS[-1] // 2, truth=TRUTH)
        return replace(recipe, **fields)

    def _draw(self, name: str) -> Any:
        tasks, seed = FITS[name].get("tasks", FITTED_ON), FITS[name].get("seed", 0)
        # Without text before, as many questions a step as with it: runs side by side ask equally many.
        before = FITS[name].get("before", text_of("fit"))
        return fitting_questions(tasks, FITTED_SIZES, seed, self.questions, before=before, most=TEXT_BEFORE)

    def _sit(self, policy: Policy, exam: Exam) -> Sheet:
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
        key = {MAIN: "main", RIVAL: "rival", TRANSFER: "transfer"}[asked]

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
        choosing, piece = split == "choose", max(WINDOWS)
        tokens = min(SELECTION, MORE_TEXT * self.text_tokens) if choosing else self.text_tokens
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
            log.info("%s: %.1f s", name, time.perf_counter() - began)
            return value

        return self.folder.once(name, timed)


def _worst_rise(step: dict[str, Any]) -> float:
    return max(float(text["perplexity_rise"]) for text in step["text"].values())


def _asked_of(name: str) -> int:
    """Return the seed of the questions that a fit is judged on."""
    seed: int = FITS[name].get("seed", 0)
    return FRESH + seed


def _joined(sheets: Sequence[Any]) -> Sheet:
    """Return the answers of several sheets (as JSON) as those of one."""
    read = [Sheet.from_json(sheet) for sheet in sheets]
    answers = {key: [a for sheet in read for a in sheet.answers[key]] for key in read[0].answers}
    return Sheet(answers, {}, sum(sheet.seconds for sheet in read))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="What a learned policy is worth, and where it is not.")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--questions", type=int, default=8, help="a step")
    parser.add_argument("--text-tokens", type=int, default=98304)
    parser.add_argument("--proposals", type=Path, metavar="FOLDER", help="of pep-*.rst: more prose on Python")
    parser.add_argument("--together", type=int, default=65536, help="tokens to read at once")
    parser.add_argument("--only", nargs="+", default=(), metavar="STEP")
    parser.add_argument("--gather", action="store_true", help="judge nothing more, and name what is absent")
    options = vars(parser.parse_args())
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("sharpmax").setLevel(logging.INFO)
    metrics = run(**options)
    if not options["only"]:
        print("\n".join([*comparison(metrics), "", *by_kind(metrics), "", *transfer(metrics)]))


if __name__ == "__main__":
    main()
