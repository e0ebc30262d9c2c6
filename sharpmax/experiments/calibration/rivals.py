"""Put a card beside its rivals: each arm fitted, chosen and judged as the card is, on the same questions and text.

An arm is an entry of `sharpmax.hf.calibration.rivals.ARMS`. All see the questions, text, price, steps and seeds of the
study; each has its best of several learning rates, by the selection split; its strength is chosen by the rule of cards;
and one exam judges all of them. Every step is kept, so that a killed run goes on, and more arms or seeds can follow.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from statistics import fmean
from typing import Any

from sharpmax.defaults import FIT_TASKS
from sharpmax.experiments.calibration.plan import RIVALS_FRESH
from sharpmax.experiments.calibration.study import Study, told
from sharpmax.flags import require_among, require_at_least
from sharpmax.hf.calibration.choose import best_of, choose, score
from sharpmax.hf.calibration.fitting_data import fitting_texts
from sharpmax.hf.calibration.judge import Sheet, sit
from sharpmax.hf.calibration.rivals import ARMS, Rival, learn_rival
from sharpmax.statistics import paired

FIRST = "learn"
"""The arm that the others are compared with: the card."""


class Rivals(Study):
    """One model, one folder: every arm of every seed, each step computed once."""

    def run(self, arms: Sequence[str]) -> dict[str, Any]:
        """Return what every arm comes to, by name: its numbers, each seed, and all seeds together."""
        found: dict[str, Any] = {}
        for seed in self.plan.seeds:  # all arms of one seed first: a run may be cut short
            for arm in arms:
                told(f"{arm}, {seed}")
                found.setdefault(arm, {})[seed] = self.arm(arm, seed)
        return self.gathered(found)

    def arm(self, arm: str, seed: str) -> Any:
        """Fit an arm, choose how much of it to keep, and judge it."""
        key = f"{_plain(arm)}-{seed}"
        choice = self._once(f"choose-{key}", lambda: self._chosen(arm, seed))
        if choice["strength"] is None:
            return {"chosen": None, **{name: choice[name] for name in ("scores", "numbers")}}

        def judged() -> Any:
            rival = self._fitted_rival(arm, seed).kept(choice["share"], choice["strength"])
            return self._compared(partial(self._sit, rival), RIVALS_FRESH, self.plan.rival)

        return {"chosen": choice["name"], "numbers": choice["numbers"], **self._once(f"judge-{key}", judged)}

    def gathered(self, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Return the metrics of what was judged: every arm's seeds, their means, and each arm against the card."""
        plain = Sheet.from_json(self._plain(RIVALS_FRESH, self.plan.rival)[0])
        metrics: dict[str, Any] = {}
        sheets = {
            arm: [Sheet.from_json(step["records"][0]) if step["chosen"] else plain for step in seeds.values()]
            for arm, seeds in found.items()
        }
        for arm, seeds in found.items():
            shown = {
                seed: {key: value for key, value in step.items() if key != "records"} for seed, step in seeds.items()
            }
            metrics[arm] = {"numbers": next(iter(seeds.values()))["numbers"], "at_inference": ARMS[arm].at_inference}
            metrics[arm] |= {"seeds": shown, "right": {}, "against_card": {}}
            for task, size in plain.answers:
                cell = f"{task} {size}"
                own = _right(sheets[arm], (task, size))
                metrics[arm]["right"][cell] = {"plain": fmean(_right([plain], (task, size))), "arm": fmean(own)}
                if arm != FIRST and FIRST in sheets:
                    card = _right(sheets[FIRST], (task, size))
                    metrics[arm]["against_card"][cell] = paired(card, own).to_json()
        return metrics

    def _chosen(self, arm: str, seed: str) -> Any:
        """Return what the selection split keeps of an arm."""
        rival = self._fitted_rival(arm, seed)
        choice = choose(
            self.loaded,
            rival,
            self._selection(FIT_TASKS, self.plan.fits[seed]["seed"]),
            most_rise=self.plan.most_rise,
            fine=self.plan.fine,
            once=partial(self._tried, arm, seed),
        )
        kept: Any = choice.policy
        strength, share = (None, None) if kept is None else (kept.strength, kept.share)
        scored = {"name": choice.name, "scores": choice.scores, "numbers": rival.count}
        return {**scored, "strength": strength, "share": share, "faster": self._faster(arm)}

    def _tried(self, arm: str, seed: str, key: str, compute: Callable[[], Any]) -> Any:
        """Keep what a candidate scored; the plain model is the same for every arm."""
        whose = seed if key.startswith("plain-") else f"{_plain(arm)}-{seed}"
        return self.folder.once(f"try-{whose}-{key}", compute)

    def _faster(self, arm: str) -> float:
        """Return what the selection split makes of the learning rates of an arm, by the fits of the first seed."""
        first, *others = self.plan.faster
        if not others:
            return first
        seed = self.plan.seeds[0]
        exam = self._selection(FIT_TASKS, self.plan.fits[seed]["seed"])

        def scored(faster: float) -> Any:
            fitted = self._fit(arm, seed, faster)
            return score(self._plain_selection(exam), sit(self.loaded, exam, fitted))

        def rates() -> Any:
            return {f"{faster:g}": scored(faster) for faster in self.plan.faster}

        chosen = best_of(self._once(f"rate-{_plain(arm)}", rates), most_rise=self.plan.most_rise)
        return next(faster for faster in self.plan.faster if f"{faster:g}" == chosen)

    @cached_property
    def _fitted_texts(self) -> Any:
        return fitting_texts(self.loaded)

    def _plain_selection(self, exam: Any) -> Sheet:
        kept = self._once("plain-selection", lambda: sit(self.loaded, exam).to_json())
        return Sheet.from_json(kept)

    def _fitted_rival(self, arm: str, seed: str) -> Rival:
        return self._fit(arm, seed, self._faster(arm))

    def _fit(self, arm: str, seed: str, faster: float) -> Rival:
        """Return a fit; one that was killed goes on, and one that ended is read back."""
        keep = self.folder.path / f"fit-{_plain(arm)}-{seed}-{faster:g}.safetensors"
        draw, recipe = self._draw(seed), self._recipe(seed)
        return learn_rival(self.loaded, arm, draw, self._fitted_texts, recipe, faster=faster, keep=keep).rival


def names_of(arms: Sequence[str]) -> list[str]:
    """Return the arms asked for, or raise ValueError for one that there is not; `all` is every one."""
    require_among("arms", arms, ("all", *ARMS))
    return list(ARMS) if "all" in arms else list(dict.fromkeys(arms))


def fits_of(seeds: int) -> dict[str, dict[str, Any]]:
    """Return the fits of so many seeds."""
    require_at_least(1, seeds=seeds)
    return {f"seed{seed}": {"seed": seed} for seed in range(seeds)}


def _plain(arm: str) -> str:
    return arm.replace("+", "-and-")


def _right(sheets: Sequence[Sheet], key: tuple[str, int]) -> list[float]:
    """Return for each question the share of the seeds that answer it right."""
    return [fmean(of) for of in zip(*([float(a.exact) for a in sheet.answers[key]] for sheet in sheets), strict=True)]
