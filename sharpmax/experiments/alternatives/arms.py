"""What is compared: each alternative to softmax in the head of max retrieval.

An arm is a head to train and a head to judge: the same one, but for rules that are switched on at inference alone,
which are judged on the heads that plain softmax trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sharpmax.core import normalisers
from sharpmax.core.normalisers import Entmax
from sharpmax.core.policies import PAPER, EntropyTarget, Policy
from sharpmax.flags import require_among
from sharpmax.models.alternative_head import AlternativeHead

SOFTMAX = "softmax"
FAMILIES = {
    "temperature": "Softmax at another temperature",
    "sparse": "Sparse, hard, and heavy-tailed",
    "unnormalised": "Not normalised, or not softmax at all",
}


@dataclass(frozen=True)
class Arm:
    """One contestant.

    Attributes:
        name: what the user types.
        title: what the page calls it.
        family: one of `FAMILIES`.
        source: where it is from.
        head: what is trained.
        at_inference: a policy that the trained head is judged with; None judges it as it was trained.
    """

    name: str
    title: str
    family: str
    source: str
    head: AlternativeHead
    at_inference: Policy | None = None

    @property
    def judged(self) -> AlternativeHead:
        """The head that answers."""
        return self.head if self.at_inference is None else replace(self.head, policy=self.at_inference)

    @property
    def trained_as(self) -> str:
        """The arm whose heads these are."""
        return self.name if self.at_inference is None else SOFTMAX

    @property
    def config(self) -> dict[str, Any]:
        """What decides its numbers, as JSON."""
        return {"name": self.name, "trained": repr(self.head), "judged": repr(self.judged)}


def _by(normaliser: normalisers.Normaliser, **options: Any) -> AlternativeHead:
    return AlternativeHead(normaliser=normaliser, **options)


_SOFTMAX = AlternativeHead()

ARMS = (
    Arm(SOFTMAX, "softmax", "temperature", "2410.01104", _SOFTMAX),
    Arm("paper", "the paper's polynomial, at inference", "temperature", "2410.01104", _SOFTMAX, PAPER),
    Arm("entropy-target", "EntropyTarget(0.5), at inference", "temperature", "ours", _SOFTMAX, EntropyTarget(0.5)),
    Arm(
        "paper-trained",
        "the paper's polynomial, trained with",
        "temperature",
        "2410.01104",
        AlternativeHead(policy=PAPER),
    ),
    Arm("ssmax", "SSMax: β = s·log n + b, learned", "temperature", "2501.19399", AlternativeHead(learns_scale=True)),
    Arm("entmax", "1.5-entmax", "sparse", "1905.05702", _by(Entmax(1.5))),
    Arm("sparsemax", "sparsemax", "sparse", "1602.02068", _by(Entmax(2.0))),
    Arm("asentmax", "1.5-entmax, β = s·log n + b", "sparse", "2506.16640", _by(Entmax(1.5), learns_scale=True)),
    Arm("stieltjes", "Stieltjes, order 1", "sparse", "", _by(normalisers.Stieltjes(1.0))),
    Arm("stieltjes-4", "Stieltjes, order 4", "sparse", "", _by(normalisers.Stieltjes(4.0))),
    Arm("hard", "hard, straight through", "sparse", "", _by(normalisers.Hard())),
    Arm("off-by-one", "softmax off by one", "unnormalised", "", _by(normalisers.OffByOne())),
    Arm("sigmoid", "sigmoid, bias -log n", "unnormalised", "2409.04431", _by(normalisers.Sigmoid())),
    Arm("relu", "ReLU / n", "unnormalised", "2309.08586", _by(normalisers.Relu())),
    Arm("stick-breaking", "stick-breaking", "unnormalised", "2410.17980", _by(normalisers.StickBreaking())),
    Arm("differential", "differential", "unnormalised", "2410.05258", AlternativeHead(scores="difference")),
    Arm("linear", "linear: elu + 1", "unnormalised", "2006.16236", _by(normalisers.Proportional(), scores="kernel")),
)


def arms_named(names: Sequence[str]) -> tuple[Arm, ...]:
    """Return these arms, plain softmax first, to which all are compared; none named: all."""
    require_among("arms", names, [arm.name for arm in ARMS])
    return tuple(arm for arm in ARMS if not names or arm.name in names or arm.name == SOFTMAX)
