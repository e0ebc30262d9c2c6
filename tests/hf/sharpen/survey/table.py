"""The survey as a table: every model type, its verdict, and why."""

import multiprocessing
import os
import sys
import warnings
from collections import Counter
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

from tests.hf.sharpen.survey.judge import REFUSED, SERVED, UNBUILDABLE, WRONG, Verdict, judge
from tests.places import ROOT

FILE = ROOT / "docs" / "reference" / "families.md"
SECONDS = 180
"""Time that one model type may take before it is given up."""
MAPPINGS = [
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM", "MODEL_FOR_IMAGE_TEXT_TO_TEXT", "MODEL_FOR_MULTIMODAL_LM", "MODEL_FOR_MASKED_LM",
    "MODEL_FOR_CAUSAL_LM", "MODEL_FOR_SPEECH_SEQ_2_SEQ", "MODEL", "MODEL_FOR_OBJECT_DETECTION",
]  # fmt: skip
"""transformers' auto mappings, the one whose classes hold most of a model first; the others follow."""


def candidates() -> dict[str, list[str]]:
    """Return the classes of every model type, the one to survey first."""
    tables = {
        n.removesuffix("_MAPPING_NAMES"): t for n, t in vars(modeling_auto).items() if n.endswith("MAPPING_NAMES")
    }
    found: dict[str, list[str]] = {model_type: [] for model_type in tables.pop("CONFIG")}
    for name in [*MAPPINGS, *(n for n in tables if n not in MAPPINGS)]:
        for model_type, classes in tables[name].items():
            for one in [classes] if isinstance(classes, str) else classes:
                if one not in found.setdefault(model_type, []):
                    found[model_type].append(one)
    return dict(sorted(found.items()))


def classes() -> dict[str, list[str]]:
    """Return every model class that transformers exports, by model type, those of `candidates` first; imports all."""
    found = candidates()
    for name in sorted(set(dir(transformers)).difference(*found.values())):
        if name.startswith("AutoModel") or name.lower().endswith("pretrainedmodel"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some modules use what PyTorch is about to drop
            kind = getattr(transformers, name, None) if name[0].isupper() else None
        if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
            model_type = getattr(kind.config_class, "model_type", None)
            if model_type in transformers.CONFIG_MAPPING:  # else a part without a config that could be cut
                found.setdefault(model_type, []).append(name)
    return found


def survey(model_types: list[str] | None = None) -> list[Verdict]:
    """Judge one class of each of the model types, all unless given."""
    classes = candidates()
    return judge_all([(t, classes[t]) for t in model_types or classes])


def survey_others(verdicts: list[Verdict]) -> list[Verdict]:
    """Judge every other class of the types that were judged."""
    return judge_all(others_of(verdicts))


def others_of(verdicts: list[Verdict]) -> list[tuple[str, list[str]]]:
    """Return the other classes of the types that were judged, each with its type; auto mappings name some in vain."""
    known = classes()
    pairs = [(one.model_type, name) for one in verdicts for name in known[one.model_type] if name != one.model]
    return [(model_type, [name]) for model_type, name in pairs if hasattr(transformers, name)]


def judge_all(waiting: list[tuple[str, list[str]]]) -> list[Verdict]:
    """Judge types by their classes, in a process that may crash or hang without ending the survey."""
    verdicts: list[Verdict] = []
    own = multiprocessing.get_context("spawn")  # a fork of a process in which JAX has started threads may hang
    while waiting:
        ours, theirs = own.Pipe(duplex=False)
        worker = own.Process(target=_work, args=(waiting, theirs), daemon=True)
        worker.start()
        theirs.close()
        reason = "crashed"
        try:
            ours.recv()  # that it has imported all: on a busy machine that alone takes a minute, which is no model's
            while waiting:
                if not ours.poll(SECONDS):
                    reason = f"took more than {SECONDS} s"
                    break
                verdicts.append(ours.recv())
                waiting.pop(0)
                if len(verdicts) % 50 == 0:
                    print(f"{len(verdicts)} of {len(verdicts) + len(waiting)} models", file=sys.stderr, flush=True)
        except EOFError:
            pass
        worker.kill()
        worker.join()
        if waiting:
            model_type, names = waiting.pop(0)
            verdicts.append(Verdict(model_type, (names or ["no class"])[0], UNBUILDABLE, reason))
    return verdicts


def _work(waiting: list[tuple[str, list[str]]], results: Any) -> None:
    torch.set_num_threads(1)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    results.send("ready")
    for model_type, names in waiting:
        results.send(judge(model_type, names))


def row(verdict: Verdict) -> str:
    """Return the verdict's row of the page."""
    return f"| `{verdict.model_type}` | {verdict.model} | {verdict.why} |"


def rows_of_others(others: list[Verdict]) -> list[str]:
    """Return a row per model type: its other classes, by their verdicts; why, where they are not served."""
    rows = []
    for model_type in dict.fromkeys(one.model_type for one in others):
        of_type = [one for one in others if one.model_type == model_type]
        served = ", ".join(one.model for one in of_type if one.status == SERVED)
        reasons: dict[str, list[str]] = {}
        for one in of_type:
            if one.status != SERVED:
                reasons.setdefault(f"{one.status}: {one.why.replace(one.model, 'it')}", []).append(one.model)
        rest = "; ".join(f"{', '.join(names)} {reason}" for reason, names in reasons.items())
        rows.append(f"| `{model_type}` | {served} | {rest} |")
    return rows


def page(verdicts: list[Verdict], others: list[Verdict]) -> str:
    """Return the page: what is served, refused and not built, and with which transformers."""
    count, of_others = (Counter(one.status for one in found) for found in (verdicts, others))
    numbers = {_key(s): count[s] for s in TITLES} | {f"other_{_key(s)}": of_others[s] for s in TITLES}
    lines = [HEAD.format(version=transformers.__version__, types=len(verdicts), others=len(others), **numbers)]
    for status, title in TITLES.items():
        rows = [row(one) for one in verdicts if one.status == status]
        if rows:
            what = "remarks" if status == SERVED else "why"
            lines += [f"## {title}", "", f"| model type | class | {what} |", "|---|---|---|", *rows, ""]
    lines += ["## Other classes", "", "| model type | served | others |", "|---|---|---|"]
    return "\n".join([*lines, *rows_of_others(others), ""])


def _key(status: str) -> str:
    return status.split()[0].lower()


TITLES = {SERVED: "Served", REFUSED: "Refused", UNBUILDABLE: "Not built here", WRONG: "Wrong"}

HEAD = """# Which model families sharpening serves

transformers {version} has {types} model types. A small random model of each was sharpened, in float32 on the CPU:
**{served} are served, {refused} are refused by name before they run, {not} could not be built or run here,
{wrong} are wrong.** The types have {others} other classes: {other_served} are served, {other_refused} refused by
name, {other_not} not built or run here, {other_wrong} wrong.

Generated by `python -m tests.hf.sharpen.survey`, half an hour of one core; do not edit it by hand. `make test` compares
a part of it with the installed transformers, `make test-slow` one class of every type and others of every eighth:
another version shows up as a difference.

*Served* means:

- under `Constant(1.0)` every output equals the plain model's, with and without padding;
- a last token that moves no earlier output of the plain model moves none under `Constant(2.0)`, and vice versa;
- every attention layer that ran changes the output under `Constant(2.0)`, or the remark names it;
- no other softmax over three axes or more ran, or the remark names the module it ran in. Routers, indexers and
  deformable attention are such: their softmax is not over logits of queries and keys. SAM 2 computes weights that it
  then drops.

Layers that did not run mostly belong to the vision or audio part of a model that got text. That part has its own row.

*Refused* types attend in code of their own, or not at all. Where a part of a model does not, sharpen that part alone:
`sharpen(model.decoder, …)`.
"""
