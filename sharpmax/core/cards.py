"""Policy cards: a policy as a small JSON file, with what it was fitted on and what it was worth.

    {"sharpmax_card": 1, "policy": {"type": "Polynomial", "coefficients": […], …}, "model": …, "data": …,
     "fitted_range": {"entropy": [low, high], …}, "held_out": {…}, "notes": …,
     "extension": {"type": "Yarn", "factor": 4.0, "trained": 8192, …}}

A card is read strictly: whatever it does not know, it refuses, in one line. No pickle: a card from a stranger is data.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax.core.checks import check_number, short
from sharpmax.core.extension import Extension, Unscaled, extension_from_json
from sharpmax.core.policies import Policy
from sharpmax.core.stats import RowStats
from sharpmax.files import atomic
from sharpmax.files.untrusted import MEBIBYTE, Limits, parse_json, read_json

SCHEMA = 1
CARD_FILE = "sharpmax.json"  # a card in a model's folder: it is found without being named
LIMITS = Limits(size=16 * MEBIBYTE, values=1_000_000)
MOST_POLICIES = 20_000  # in one card; a model of 126 layers and 128 heads has 16,128
MOST_ITEMS = 4096  # in a list: heads, layers, knots of a Table
MOST_COEFFICIENTS = 16  # of a Polynomial: to find its roots takes their number cubed
MOST_BETAS = 2**20  # to which the arrays of one policy broadcast together


@dataclass(frozen=True)
class Card:
    """A policy with its provenance; every field but the policy may be left empty."""

    policy: Policy
    model: str | None = None
    """The model it was fitted on."""
    data: str | None = None
    """What it was fitted on."""
    fitted_range: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The range of each statistic seen while fitting; the policy's own where it records one."""
    held_out: dict[str, Any] = field(default_factory=dict)
    """Figures on data that no fitting step saw, with and without the policy."""
    notes: str | None = None
    extension: Extension | None = None
    """How the model reads more than its trained context; None where it does not. It is applied with the policy."""

    def __post_init__(self) -> None:
        if not isinstance(self.policy, Policy):
            raise TypeError(f"a card holds a sharpmax policy, got {type(self.policy).__name__}")
        for name in ("model", "data", "notes"):
            if not isinstance(getattr(self, name), str | None):
                raise TypeError(f"a card's {name} is text, got {short(getattr(self, name))}")
        for name in ("fitted_range", "held_out"):
            if not isinstance(getattr(self, name), dict):
                raise TypeError(f"a card's {name} is a mapping, got {short(getattr(self, name))}")
        if not isinstance(self.extension, Extension | None):
            raise TypeError(f"a card's extension is a sharpmax extension, got {short(self.extension)}")
        ranges = {**self.policy.fitted_range, **self.fitted_range}
        object.__setattr__(self, "fitted_range", {name: _range(name, ends) for name, ends in ranges.items()})

    def policy_alone(self, source: str | PathLike[str]) -> Policy:
        """Return the policy, for what cannot extend a model; ValueError, which names `source`, if the card does."""
        if not isinstance(self.extension, Unscaled | None):
            raise ValueError(
                f"the card {source} extends the context by {type(self.extension).__name__}, which its policy alone "
                "does not: sharpen(model, card) applies both; load_card(card).policy is the policy"
            )
        return self.policy

    def save(self, path: str | PathLike[str]) -> None:
        """Write the card atomically: a reader sees the old file or the new one, never a part.

        Raises:
            ValueError: what `load_card` would not read again: a card that is too large or too deep, no JSON, or whose
                policy holds arrays that do not fit together.
            OSError: it cannot be written.
        """
        content: dict[str, Any] = {"sharpmax_card": SCHEMA, "policy": policy_to_json(self.policy)}
        plain = (f.name for f in dataclasses.fields(self) if f.name not in ("policy", "extension"))
        content |= {name: getattr(self, name) for name in plain}
        if self.extension is not None:  # an earlier version reads a card without one
            content["extension"] = self.extension.to_json()
        try:
            text = atomic.as_json(content) + "\n"
            _card_from_json(parse_json(text, LIMITS))
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} would be a card that nobody can read: {' '.join(str(error).split())}") from None
        atomic.write_text(Path(path), text)


def load_card(path: str | PathLike[str]) -> Card:
    """Read a policy card from a file, strictly: an unknown field is refused.

    Raises:
        ValueError: the file is not a card this version understands; the message says what is wrong.
        OSError: the file cannot be read.

    >>> import tempfile
    >>> from sharpmax.core.policies import Constant
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Constant(2.0).save(f"{folder}/card.json")
    ...     load_card(f"{folder}/card.json").policy
    Constant(inverse_temperature=2.0)
    """
    content = read_json(path, expected="a usable policy card", limits=LIMITS)
    try:
        return _card_from_json(content)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{path} is not a usable policy card: {error}") from None


def load_policy(path: str | PathLike[str]) -> Policy:
    """Read the policy out of a policy card.

    Raises:
        ValueError, OSError: as `load_card`; and ValueError for a card that extends the context, which its policy alone
            does not.

    >>> import tempfile
    >>> from sharpmax.core.policies import Constant
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Constant(2.0).save(f"{folder}/card.json")
    ...     load_policy(f"{folder}/card.json")
    Constant(inverse_temperature=2.0)
    """
    return load_card(path).policy_alone(path)


def own_name(model: str) -> tuple[str, ...]:
    """Return what tells a model from others: the last part of its name, because a copy of a model lies elsewhere.

    Of a folder that every training calls alike it is the part before as well.

    >>> own_name("HuggingFaceTB/SmolLM2-135M"), own_name("runs/finetune/mine/model")
    (('SmolLM2-135M',), ('mine', 'model'))
    """
    parts = Path(model).absolute().parts if Path(model).is_dir() else Path(model).parts
    alike = bool(parts) and (parts[-1] == "model" or parts[-1].startswith("checkpoint-"))
    return parts[-2:] if alike else parts[-1:]


def policy_to_json(policy: Policy) -> dict[str, Any]:
    """Return the policy as JSON values: its class name and its fields.

    Raises:
        ValueError: another class was defined since by that name, which the card would be read as.
    """
    known, kind = Policy.known.get(type(policy).__name__), type(policy)
    if known is not kind:
        raise ValueError(
            f"a card names this policy {kind.__name__}, and would be read as the class of that name that was defined "
            f"last, in {getattr(known, '__module__', 'no module')}: make the policy anew, or rename one of the classes"
        )
    frozen = policy.freeze()
    names = (f.name for f in dataclasses.fields(frozen))  # type: ignore[arg-type]
    return {"type": type(policy).__name__} | {name: _value_to_json(getattr(frozen, name)) for name in names}


def policy_from_json(content: Any) -> Policy:
    """Rebuild a policy; ValueError or TypeError in one line when the content is not one."""
    if not isinstance(content, dict) or "type" not in content:
        raise ValueError(f'a policy is an object with a "type", got {short(content)}')
    kind = Policy.known.get(content["type"]) if isinstance(content["type"], str) else None
    if kind is None:
        raise ValueError(f"unknown policy {short(content['type'])}; known are {', '.join(sorted(Policy.known))}")
    names = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(content) - names - {"type"})
    if unknown:
        raise ValueError(f"{kind.__name__} has no field {short(', '.join(unknown))}")
    fields = {name: _value_from_json(value) for name, value in content.items() if name != "type"}
    required = {f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING}  # type: ignore[arg-type]
    missing = sorted(required - set(fields))
    if missing:
        raise ValueError(f"{kind.__name__} lacks its field {', '.join(map(repr, missing))}")
    made = kind(**fields)
    try:
        together = math.prod(np.broadcast_shapes(*made.field_shapes))
    except ValueError:
        raise ValueError(
            f"{kind.__name__} holds arrays of shapes {short(made.field_shapes)}, which do not fit together"
        ) from None
    if together > MOST_BETAS:
        raise ValueError(f"{kind.__name__} holds arrays of shapes {short(made.field_shapes)}, too large together")
    return made


def _card_from_json(content: Any) -> Card:
    if not isinstance(content, dict) or "sharpmax_card" not in content:
        raise ValueError('it has no "sharpmax_card" field')
    if type(content["sharpmax_card"]) is not int or content["sharpmax_card"] != SCHEMA:
        raise ValueError(f"its schema is {short(content['sharpmax_card'])}; this version reads {SCHEMA}")
    if "policy" not in content:
        raise ValueError('it has no "policy" field')
    known = {f.name for f in dataclasses.fields(Card)} | {"sharpmax_card"}
    unknown = sorted(set(content) - known)
    if unknown:
        raise ValueError(f"a card has no field {short(', '.join(unknown))}")
    details = {name: content[name] for name in content if name not in ("sharpmax_card", "policy")}
    if details.get("extension") is not None:
        details["extension"] = extension_from_json(details["extension"])
    _require_modest(content["policy"])
    return Card(policy=policy_from_json(content["policy"]), **details)


def _require_modest(policy: Any) -> None:
    """Raise ValueError if a policy, as JSON, holds more than can be built and evaluated in a moment."""
    policies, pending = 0, [("policy", policy)]
    while pending:
        field, value = pending.pop()
        if isinstance(value, dict):
            policies += 1
            pending += value.items()
        elif isinstance(value, list):
            most = MOST_COEFFICIENTS if field == "coefficients" else MOST_ITEMS
            if len(value) > most:
                raise ValueError(f"a list in its policy ({field}) has {len(value):,} items, a card's at most {most:,}")
            pending += [("items", item) for item in value]
    if policies > MOST_POLICIES:
        raise ValueError(f"it holds {policies:,} policies, a card holds at most {MOST_POLICIES:,}")


def _value_to_json(value: Any) -> Any:
    if isinstance(value, Policy):
        return policy_to_json(value)
    if isinstance(value, tuple):
        return [_value_to_json(item) for item in value]
    return value


def _value_from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return policy_from_json(value)
    if isinstance(value, list):
        return tuple(_value_from_json(item) for item in value)
    return value


def _range(name: str, ends: Any) -> tuple[float, float]:
    if name not in RowStats._fields:
        raise ValueError(f"fitted_range names statistics ({', '.join(RowStats._fields)}), got {short(name)}")
    if not isinstance(ends, list | tuple) or len(ends) != 2:
        raise ValueError(f"fitted_range[{name!r}] must be [low, high], got {short(ends)}")
    for end in ends:
        check_number("Card", "fitted_range", end, scalar=True)
    if ends[0] > ends[1]:
        raise ValueError(f"fitted_range[{name!r}] must be [low, high], got {short(ends)}")
    return ends[0], ends[1]
