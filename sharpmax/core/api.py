"""The public names of `sharpmax`, gathered; the package, which lists them, imports each when it is first asked for."""

from sharpmax.core import bounds, laws, normalisers
from sharpmax.core.attention import reference_attention
from sharpmax.core.cards import Card, load_card, load_policy
from sharpmax.core.extension import DynamicNTK, SelfExtend, Unscaled, Yarn
from sharpmax.core.policies import (
    PAPER,
    Beyond,
    Constant,
    EntropyTarget,
    LengthScaled,
    LogLinear,
    PerHead,
    PerLayer,
    Policy,
    Polynomial,
    Table,
    detach,
)
from sharpmax.core.softmax import SilentPolicyWarning, entropy, softmax
from sharpmax.core.stats import RowStats, StreamState, row_stats
