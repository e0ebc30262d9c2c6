"""The table of attention cases that every implementation must pass, in every framework; NumPy and policies only.

A case is data: shapes, masks, how the logits lie, the policy. `draw` turns it into float64 arrays from its own seed;
a suite rounds them to the dtype under test *before* the reference sees them, so only the computation is judged.
"""

import zlib
from dataclasses import dataclass, replace

import numpy as np

from sharpmax import (
    PAPER,
    Beyond,
    Constant,
    EntropyTarget,
    LengthScaled,
    LogLinear,
    PerHead,
    Policy,
    Polynomial,
    Table,
    detach,
)


@dataclass(frozen=True)
class Case:
    name: str
    policy: Policy = PAPER
    batch: int = 1
    heads: int = 2
    key_heads: int = 2
    queries: int = 37
    keys: int = 37
    width: int = 16
    value_width: int = 16
    logits: str = "normal"  # normal, huge, uniform, one-hot, retrieval
    is_causal: bool = False
    window: int | tuple[int, int] | None = None
    softcap: float | None = None
    scale: float | None = None
    mask: str | None = None  # padding (keys), random, dead (some rows see nothing)
    bias: str | None = None  # full, keys (broadcast), masking (-inf)
    sinks: bool = False

    def draw(self) -> dict[str, np.ndarray | None]:
        """Return query, key, value, mask, bias and sinks: float64 (batch, heads, length, width), boolean, or None."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        spread = {"normal": 2.0, "huge": 60.0, "uniform": 0.0, "one-hot": 1.0, "retrieval": 1.0}[self.logits]
        q = rng.normal(size=(self.batch, self.heads, self.queries, self.width)) * spread
        k = rng.normal(size=(self.batch, self.key_heads, self.keys, self.width))
        v = rng.normal(size=(self.batch, self.key_heads, self.keys, self.value_width))
        if self.logits == "one-hot":  # the first key wins by far
            q, k[:, :, 0] = np.abs(q) + 1, 12.0
        if self.logits == "retrieval":  # the first key wins only after sharpening
            q, k[:, :, 0] = np.abs(q), 2.0
        shape = (self.batch, self.heads, self.queries, self.keys)
        return {
            "query": q,
            "key": k,
            "value": v,
            "mask": self._mask(rng, shape),
            "bias": self._bias(rng, shape),
            "sinks": rng.normal(size=self.heads) if self.sinks else None,
        }

    def _mask(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray | None:
        if self.mask is None:
            return None
        if self.mask == "padding":
            lengths = rng.integers(1, shape[3], size=shape[0])
            return (np.arange(shape[3]) < lengths[:, None])[:, None, None, :]
        mask = rng.random(shape) < 0.6
        if self.mask == "dead":
            mask[:, :, ::3] = False
        return mask

    def _bias(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray | None:
        if self.bias is None:
            return None
        if self.bias == "keys":
            return rng.normal(size=shape[3])
        bias = rng.normal(size=(1, *shape[1:]))
        if self.bias == "masking":
            bias[rng.random(bias.shape) < 0.3] = -np.inf
        return bias

    @property
    def options(self) -> dict[str, object]:
        """Keyword arguments that are no arrays."""
        names = ("is_causal", "window", "softcap", "scale")
        return {"policy": self.policy, **{name: getattr(self, name) for name in names}}


PLAIN = Case("plain")
CAUSAL = Case("causal", is_causal=True)

SHAPES = (
    PLAIN,
    CAUSAL,
    replace(CAUSAL, name="grouped", heads=4, key_heads=2),
    replace(CAUSAL, name="one key head", heads=3, key_heads=1),
    replace(CAUSAL, name="fewer queries than keys", queries=21, keys=50),
    replace(CAUSAL, name="more queries than keys", queries=50, keys=21),
    replace(CAUSAL, name="one query", queries=1, keys=67, heads=4, key_heads=2),
    replace(PLAIN, name="one key", queries=5, keys=1),
    replace(CAUSAL, name="one of each", queries=1, keys=1),
    replace(CAUSAL, name="odd width", width=24, value_width=24),
    replace(PLAIN, name="values wider than keys", width=16, value_width=40),
    replace(CAUSAL, name="two in a batch", batch=2, heads=2, key_heads=1),
)

MASKS = (
    replace(PLAIN, name="window", window=7),
    replace(CAUSAL, name="window of a pair", window=(9, 3)),
    replace(PLAIN, name="window to both sides", window=(5, 8), queries=30, keys=41),
    replace(PLAIN, name="padding", mask="padding", batch=2),
    replace(CAUSAL, name="causal padding", mask="padding", batch=2),
    replace(PLAIN, name="random mask", mask="random"),
    replace(PLAIN, name="dead rows", mask="dead"),
    replace(CAUSAL, name="dead causal rows", mask="dead", window=6),
    replace(CAUSAL, name="padding of long rows", mask="padding", batch=2, heads=4, queries=36, keys=52),
    replace(CAUSAL, name="a mask per head", mask="random", heads=4, window=20),
    replace(PLAIN, name="padding of one query", mask="padding", batch=2, heads=4, queries=1, keys=67),
)

LOGITS = (
    replace(CAUSAL, name="huge logits", logits="huge"),
    replace(CAUSAL, name="uniform logits", logits="uniform"),
    replace(CAUSAL, name="one-hot logits", logits="one-hot"),
    replace(CAUSAL, name="retrieval", logits="retrieval", keys=80, queries=80),
    replace(CAUSAL, name="softcap", softcap=3.0),
    replace(CAUSAL, name="softcap far above the logits", softcap=300.0),
    replace(PLAIN, name="sinks", sinks=True),
    replace(CAUSAL, name="sinks and dead rows", sinks=True, mask="dead"),
    replace(CAUSAL, name="one query and its sink", sinks=True, softcap=3.0, heads=4, queries=1, keys=67),
    replace(PLAIN, name="one dead query", sinks=True, mask="dead", queries=1, keys=40),
    replace(PLAIN, name="bias", bias="full"),
    replace(CAUSAL, name="bias by key", bias="keys"),
    replace(PLAIN, name="masking bias", bias="masking"),
    replace(CAUSAL, name="given scale", scale=0.7),
    replace(CAUSAL, name="everything", heads=4, window=20, softcap=4.0, sinks=True, mask="random", bias="full"),
)

POLICIES = (
    replace(CAUSAL, name="constant 1", policy=Constant(1.0)),
    replace(CAUSAL, name="constant 3", policy=Constant(3.0)),
    replace(CAUSAL, name="softening", policy=Constant(0.25)),
    replace(CAUSAL, name="clamped polynomial", policy=Polynomial((0.4, 0.2, 1.0), threshold=0.1, domain=(0.3, 2.0))),
    replace(CAUSAL, name="table", policy=Table((0.5, 1.5, 3.0), (1.0, 1.8, 4.0))),
    replace(CAUSAL, name="entropy target", policy=EntropyTarget(1.0)),
    replace(PLAIN, name="entropy target, long rows", policy=EntropyTarget(1.5)),
    replace(CAUSAL, name="entropy target of what is seen", policy=EntropyTarget(1.0), mask="dead", sinks=True),
    replace(CAUSAL, name="length", policy=LengthScaled.ssmax(0.4)),
    replace(CAUSAL, name="position", policy=LengthScaled.llama4(floor_scale=8)),
    replace(CAUSAL, name="length under a mask", policy=LengthScaled.ssmax(0.4), mask="dead"),
    replace(CAUSAL, name="beyond", policy=Beyond(3, 0.8, 0.5, 2)),
    replace(CAUSAL, name="log-linear", policy=LogLinear(a=0.1, b=0.2, c=0.3, n0=8)),
    replace(CAUSAL, name="a policy per head", policy=PerHead((PAPER, Constant(2.0)))),
    replace(CAUSAL, name="detached", policy=detach(PAPER)),
)

CASES = SHAPES + MASKS + LOGITS + POLICIES
