"""Describe a context extension as data: how a model with rotary positions reads more tokens than it was trained on.

    Unscaled     positions go on as they are
    DynamicNTK   the base of the frequencies grows with the row's own length; nothing changes within the trained one
    Yarn         low frequencies are interpolated by the factor, high ones kept; logits sharpened by (0.1·log s + 1)²
    SelfExtend   near keys keep their positions; far ones are read by groups, so that no distance is new

An extension is a frozen dataclass, as a policy is. It knows no framework: `sharpmax.hf` applies it to a model, and a
card carries it. NTK: https://github.com/jquesnelle/yarn; YaRN: arXiv 2309.00071; Self-Extend: arXiv 2401.01325.
"""

import dataclasses
import math
from abc import ABC
from dataclasses import dataclass
from typing import Any, ClassVar

from sharpmax.core.checks import check_number, short
from sharpmax.defaults import SCALINGS
from sharpmax.spelling import did_you_mean

LONGEST = 2**40
"""Tokens that an extension may read at most: no card makes its reader count for long."""


@dataclass(frozen=True)
class Extension(ABC):
    """A way to read `factor` times the trained context.

    Attributes:
        factor: how many times the trained context is to be read, at least 1.
        trained: the context that the model was trained on, in tokens.
    """

    known: ClassVar[dict[str, type["Extension"]]] = {}
    """Every extension by its class name: what a card may name."""
    called: ClassVar[str] = ""
    """What the command line calls it."""

    factor: float
    trained: int

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.known[cls.__name__] = cls

    def __post_init__(self) -> None:
        if type(self) is Extension:
            raise TypeError(f"choose one of {', '.join(self.known)}, not Extension itself")
        kind = type(self).__name__
        check_number(kind, "factor", self.factor, least=1, scalar=True)
        if type(self.trained) is not int or self.trained < 2:
            raise ValueError(f"{kind}.trained is a number of tokens, at least 2, got {short(self.trained)}")
        if self.factor * self.trained > LONGEST:
            raise ValueError(f"{kind} reads at most {LONGEST:,} tokens, got {self.factor} times {self.trained}")

    @property
    def context(self) -> int:
        """How many tokens may be read, at least the trained ones."""
        return math.floor(self.factor * self.trained)

    def to_json(self) -> dict[str, Any]:
        """Return the extension as JSON values: its class name and its fields."""
        return {"type": type(self).__name__} | dataclasses.asdict(self)


@dataclass(frozen=True)
class Unscaled(Extension):
    """Positions beyond the trained ones as they come: what a model does when nobody scales anything."""

    called = "none"


@dataclass(frozen=True)
class DynamicNTK(Extension):
    """The base of the frequencies grows with the length n of the row, once that is beyond the trained one, L.

        base · (factor·n/L - (factor - 1))^(d/(d-2))

    All keys of a row are read at the frequencies of its present length, cached ones too.
    """

    called = "ntk"


@dataclass(frozen=True)
class Yarn(Extension):
    """Frequencies that turn less than once in the trained context are interpolated, the fastest are kept.

    Attributes:
        temperature: whether the logits are sharpened by (0.1·log(factor) + 1)², as published. It holds at every
            length, short ones too.
    """

    called = "yarn"

    temperature: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.temperature, bool):
            raise TypeError(f"Yarn.temperature must be True or False, got {short(self.temperature)}")


@dataclass(frozen=True)
class SelfExtend(Extension):
    """Keys nearer than `neighbours` keep their distance; farther ones are read by groups of `group` positions.

        distance = i - j                                                       where i - j < w
                   floor(i/g) + w - floor(w/g) - floor(j/g)                    elsewhere

    Attributes:
        neighbours: w, in tokens, within the trained context; 0 means an eighth of it.
        group: g, in tokens; 0 means the least with which the whole context has no distance that was not trained.
    """

    called = "self-extend"

    neighbours: int = 0
    group: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("neighbours", "group"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 0:
                raise ValueError(f"SelfExtend.{name} is a number of tokens, got {short(getattr(self, name))}")
        window = self.neighbours or max(1, self.trained // 8)
        if window >= self.trained:
            raise ValueError(f"SelfExtend.neighbours must be below the trained {self.trained} tokens, got {window}")
        object.__setattr__(self, "neighbours", window)
        object.__setattr__(self, "group", self.group or self._least_group())

    def _least_group(self) -> int:
        last, near = self.context - 1, self.neighbours
        group = 1
        while last // group + near - near // group >= self.trained and group <= last:
            # Neither quotient changes before the next group of these two.
            ends = [last // (last // group)] + ([near // (near // group)] if group <= near else [])
            group = min(ends) + 1
        return group


def extension_from_json(content: Any) -> Extension:
    """Rebuild an extension; ValueError or TypeError in one line when the content is not one.

    >>> extension_from_json({"type": "Yarn", "factor": 4.0, "trained": 8192}).context
    32768
    """
    if not isinstance(content, dict) or "type" not in content:
        raise ValueError(f'an extension is an object with a "type", got {short(content)}')
    kind = Extension.known.get(content["type"]) if isinstance(content["type"], str) else None
    if kind is None:
        raise ValueError(f"unknown extension {short(content['type'])}; known are {', '.join(sorted(Extension.known))}")
    fields = {name: value for name, value in content.items() if name != "type"}
    names = {f.name for f in dataclasses.fields(kind)}
    if unknown := sorted(set(fields) - names):
        raise ValueError(f"{kind.__name__} has no field {short(', '.join(unknown))}")
    required = {f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING}
    if missing := sorted(required - set(fields)):
        raise ValueError(f"{kind.__name__} lacks its field {', '.join(map(repr, missing))}")
    return kind(**fields)


def extension_called(name: str, factor: float, trained: int) -> Extension:
    """Return an extension by the name that the command line gives it; `yarn-plain` is without its temperature.

    Raises:
        ValueError: no such name, or a factor below 1.

    >>> extension_called("yarn-plain", 2.0, 8192)
    Yarn(factor=2.0, trained=8192, temperature=False)
    """
    if name == "yarn-plain":
        return Yarn(factor, trained, temperature=False)
    kind = next((kind for kind in Extension.known.values() if kind.called == name), None)
    if kind is None:
        raise ValueError(f"expected a scaling among {', '.join(SCALINGS)}, got {name!r}{did_you_mean(name, SCALINGS)}")
    return kind(factor, trained)
