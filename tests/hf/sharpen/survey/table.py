"""The survey as a table: every model type, its verdict, and why."""

import multiprocessing
import os
import sys
from collections import Counter
from pathlib import Path

import torch
import transformers
from transformers.models.auto import modeling_auto

from tests.hf.sharpen.survey.judge import UNBUILDABLE, Verdict, judge

FILE = Path(__file__).parents[4] / "docs" / "families.md"
SECONDS = 30
"""Time that one model type may take before it is given up."""
MAPPINGS = [
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM", "MODEL_FOR_IMAGE_TEXT_TO_TEXT", "MODEL_FOR_MULTIMODAL_LM", "MODEL_FOR_MASKED_LM",
    "MODEL_FOR_CAUSAL_LM", "MODEL_FOR_SPEECH_SEQ_2_SEQ", "MODEL", "MODEL_FOR_OBJECT_DETECTION",
]  # fmt: skip
"""transformers' auto mappings, the one whose classes hold most of a model first; the others follow."""


def candidates() -> dict[str, list[str]]:
    """Return the classes of every model type, the one to survey first."""
    tables = {n.removesuffix("_MAPPING_NAMES"): t for n, t in vars(modeling_auto).items() if n.endswith("MAPPING_NAMES")}
    found: dict[str, list[str]] = {model_type: [] for model_type in tables.pop("CONFIG")}
    for name in [*MAPPINGS, *(n for n in tables if n not in MAPPINGS)]:
        for model_type, classes in tables[name].items():
            for one in [classes] if isinstance(classes, str) else classes:
                if one not in found.setdefault(model_type, []):
                    found[model_type].append(one)
    return dict(sorted(found.items()))


def survey(model_types: list[str] | None = None) -> list[Verdict]:
    """Judge the model types, all unless given, each in a process that may crash or hang without ending the survey."""
    classes = candidates()
    waiting = [(t, classes[t]) for t in model_types or classes]
    verdicts: list[Verdict] = []
    fork = multiprocessing.get_context("fork")
    while waiting:
        ours, theirs = fork.Pipe(duplex=False)
        worker = fork.Process(target=_work, args=(waiting, theirs), daemon=True)
        worker.start()
        theirs.close()
        reason = "crashed"
        try:
            while waiting:
                if not ours.poll(SECONDS):
                    reason = f"took more than {SECONDS} s"
                    break
                verdicts.append(ours.recv())
                waiting.pop(0)
                _progress(len(verdicts), verdicts[-1])
        except EOFError:
            pass
        worker.kill()
        worker.join()
        if waiting:
            model_type, names = waiting.pop(0)
            verdicts.append(Verdict(model_type, (names or ["no class"])[0], UNBUILDABLE, reason))
    return verdicts


def _work(waiting: list[tuple[str, list[str]]], results: object) -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    sys.stderr = sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    for model_type, names in waiting:
        results.send(judge(model_type, names[:2]))


def _progress(count: int, verdict: Verdict) -> None:
    if count % 50 == 0:
        print(count, verdict.model_type, file=sys.stderr, flush=True)


def table(verdicts: list[Verdict]) -> str:
    """Return the page."""
    count = Counter(one.status for one in verdicts)
    return str(count)
