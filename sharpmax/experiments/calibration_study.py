"""What a learned policy is worth, and where it is not: the whole comparison, a step at a time, each kept once computed.

Claim (ours), to be measured: 810 numbers, fitted on lookups of at most 32 entries, take a frozen SmolLM2 to 75 % at 128
entries and 60 % at 256, for at most 0.5 % of perplexity. Then the honest part: the same card on other wordings and
tasks, fitted on a mixture, against the paper's rule, one global beta, b alone, and a LoRA fitted at equal cost; five
seeds; and accuracy against perplexity as the penalty grows.

Cost: on one H200 about 70 s a fit and as much a judgement; 13 fits: about half an hour in all. A killed run continues:
    python -m sharpmax.experiments.calibration_study --device cuda --out runs
    python -m sharpmax.experiments.calibration_study --device cuda --out runs --only seed0 seed1     (a part of it)
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sharpmax.core.cards import policy_from_json, policy_to_json
from sharpmax.core.policies import PAPER, Constant, Policy
from sharpmax.experiments.calibration import fitting_questions, held_out_exam
from sharpmax.experiments.run_folder import RunFolder
from sharpmax.experiments.splits import text_of
from sharpmax.hf.adapter import learn_lora
from sharpmax.hf.judge import Exam, Sheet, compare, sit
from sharpmax.hf.learn import Recipe, learn
from sharpmax.hf.load import LoadedModel, load
from sharpmax.report.curves import Curve, CurvesDisplay

SEEDS = range(5)
PENALTIES = (1.0, 10.0, 20.0, 50.0, 200.0)
CHOSEN = 20.0
SIZES, WINDOWS = (8, 16, 32, 64, 128, 256), (256, 1024, 4096)
TRANSFER = ("lookup:parcel", "lookup:table", "lookup:room", "needle", "copy", "maximum")
TRANSFER_SIZES = (16, 64, 128)
MIXTURE = ("lookup", "needle", "copy", "maximum")
GLOBAL_BETAS = (1.03, 1.07, 1.11)


def run(
    out: str | Path = "runs", *, model: str = "smollm2", device: str = "cuda", prompts: int = 200, steps: int = 150,
    batch: int = 8, text_tokens: int = 65536, only: tuple[str, ...] = (),
) -> dict[str, Any]:  # fmt: skip
    """Compute every step that is not on disk yet (or only the named ones), and gather them."""
    config = {"seed": 0, "model": model, "prompts": prompts, "steps": steps, "text_tokens": text_tokens}
    folder = RunFolder.open(out, "calibration-study", Path(model).name, config)
    study = _Study(load(model, device=device), folder, prompts, steps, batch, text_tokens)
    tasks: dict[str, Callable[[], Any]] = {}
    for seed in SEEDS:
        tasks[f"seed{seed}"] = partial(study.learned, f"seed{seed}", CHOSEN, seed)
    for penalty in PENALTIES:
        tasks[f"penalty{penalty:g}"] = partial(study.learned, f"penalty{penalty:g}", penalty, 0)
    tasks["b-alone"] = partial(study.learned, "b-alone", CHOSEN, 0, learned="b")
    tasks["mixture"] = partial(study.learned, "mixture", CHOSEN, 0, tasks=MIXTURE)
    tasks["transfer"] = partial(study.transfer, ("seed0", "mixture"))
    tasks["lora"] = partial(study.lora, CHOSEN, 0)
    tasks["paper"] = partial(study.judged, "paper", PAPER, 0)
    for beta in GLOBAL_BETAS:
        tasks[f"beta{beta:g}"] = partial(study.judged, f"beta{beta:g}", Constant(beta), 0)
    unknown = sorted(set(only) - set(tasks))
    if unknown:
        raise ValueError(f"expected steps among {', '.join(tasks)}, got {', '.join(unknown)}")
    metrics = {name: compute() for name, compute in tasks.items() if not only or name in only}
    folder.finish(metrics)
    if not only:
        _trade_off(metrics).save(folder.figures, "trade-off")
    return metrics


def _trade_off(metrics: dict[str, Any]) -> CurvesDisplay:
    """Return accuracy at the largest sizes against the rise of perplexity, as the penalty grows."""
    found = [metrics[f"penalty{penalty:g}"] for penalty in PENALTIES]
    rises = [100 * max(text["perplexity_rise"] for text in step["text"].values()) for step in found]
    curves = [
        Curve(
            f"{size} entries", rises, [100 * step["tasks"]["lookup"][str(size)]["accuracy"]["policy"] for step in found]
        )
        for size in SIZES[-2:]
    ]
    title = f"Penalty {PENALTIES[-1]:g} (left) to {PENALTIES[0]:g}"
    return CurvesDisplay(curves, "rise of perplexity, %", "right answers, %", title, x_scale="linear")


class _Study:
    """One model, one folder: every fit and every judgement by name, each computed once."""

    def __init__(
        self, loaded: LoadedModel, folder: RunFolder, prompts: int, steps: int, batch: int, text_tokens: int
    ) -> None:
        self.loaded, self.folder = loaded, folder
        self.prompts, self.steps, self.batch, self.text_tokens = prompts, steps, batch, text_tokens
        self._plain: dict[str, Sheet] = {}

    def learned(
        self, name: str, penalty: float, seed: int, *, learned: str = "abc", tasks: tuple[str, ...] = ("lookup",)
    ) -> Any:
        """Fit, then judge on the lookups and the text of the seed's report split."""

        def fit() -> Any:
            recipe = Recipe(learned, self.steps, penalty=penalty, seed=seed)
            result = learn(self.loaded, fitting_questions(tasks, (4, 32), seed), self._text("fit"), recipe)
            return {"policy": policy_to_json(result.policy), "answers": result.answers, "apart": result.divergence}

        policy = policy_from_json(self.folder.once(f"fit-{name}", fit)["policy"])
        return self.judged(name, policy, seed)

    def judged(self, name: str, policy: Policy, seed: int) -> Any:
        """Judge a policy on lookups at every size, and on text."""
        return self.folder.once(f"judge-{name}", lambda: self._compared(policy, seed, ("lookup",), SIZES, WINDOWS))

    def transfer(self, names: tuple[str, ...]) -> Any:
        """Judge fitted policies on wordings and tasks that they were not fitted on."""
        found = {}
        for name in names:
            policy = policy_from_json(self.folder.once(f"fit-{name}", _missing)["policy"])
            compute = partial(self._compared, policy, 0, TRANSFER, TRANSFER_SIZES, WINDOWS[:1])
            found[name] = self.folder.once(f"transfer-{name}", compute)
        return found

    def lora(self, penalty: float, seed: int) -> Any:
        """Fit a LoRA on the same data by the same recipe, and judge it alike."""

        def compute() -> Any:
            recipe = Recipe(steps=self.steps, penalty=penalty, seed=seed)
            questions = fitting_questions(("lookup",), (4, 32), seed)
            rival = learn_lora(self.loaded, questions, self._text("fit"), recipe)
            exam = self._exam(seed, ("lookup",), SIZES, WINDOWS)
            return compare(self._sit_plain(exam, f"{seed}-lookup"), sit(rival, exam)).to_json()

        return self.folder.once("judge-lora", compute)

    def _compared(self, policy: Policy, seed: int, tasks: Any, sizes: Any, windows: Any) -> Any:
        exam = self._exam(seed, tasks, sizes, windows)
        return compare(self._sit_plain(exam, f"{seed}-{'-'.join(tasks)}"), sit(self.loaded, exam, policy)).to_json()

    def _sit_plain(self, exam: Exam, key: str) -> Sheet:
        if key not in self._plain:
            self._plain[key] = sit(self.loaded, exam)
        return self._plain[key]

    def _exam(self, seed: int, tasks: Any, sizes: Any, windows: Any) -> Exam:
        options: dict[str, Any] = {"prompts": self.prompts, "text_tokens": self.text_tokens, "batch": self.batch}
        return held_out_exam(self.loaded, tasks=tasks, sizes=sizes, windows=windows, seed=seed, **options)

    def _text(self, split: str) -> Any:
        return self.loaded.tokens(text_of(split))[:, : self.text_tokens]


def _missing() -> Any:
    raise ValueError("the transfer needs fits that were not made yet; run the steps seed0 and mixture first")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="What a learned policy is worth, and where it is not.")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--text-tokens", type=int, default=65536)
    parser.add_argument("--only", nargs="+", default=(), metavar="STEP")
    options = vars(parser.parse_args())
    run(**{**options, "only": tuple(options["only"])})


if __name__ == "__main__":
    main()
