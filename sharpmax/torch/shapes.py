"""Name the shapes of what the public functions take and return; only the tests check them (tests/torch/checked.py)."""

from typing import TYPE_CHECKING, Any

from jaxtyping import Bool, Float, Integer
from torch import Tensor

from sharpmax.core.stats import RowStats

Query = Float[Tensor, "batch heads queries width"]
Key = Float[Tensor, "batch key_heads keys width"]
Value = Float[Tensor, "batch key_heads keys value_width"]
Mask = Bool[Tensor, "..."] | None  # broadcasts to (batch, heads, queries, keys)
Bias = Float[Tensor, "..."] | None  # likewise
Sinks = Float[Tensor, " heads"] | None

PackedQuery = Float[Tensor, "heads queries width"]
PackedKey = Float[Tensor, "key_heads keys width"]
PackedValue = Float[Tensor, "key_heads keys value_width"]
Ends = Integer[Tensor, " documents_and_one"]

PagedQuery = Float[Tensor, "tokens heads width"]
PagedEnds = Integer[Tensor, " sequences_and_one"]

if TYPE_CHECKING:  # the type depends on `return_stats`, which a type checker would make every caller tell apart
    Attended = Any
    PackedAttended = Any
    PagedAttended = Any
else:
    _Output = Float[Tensor, "batch heads queries value_width"]
    Attended = _Output | tuple[_Output, RowStats]
    _PackedOutput = Float[Tensor, "heads queries value_width"]
    PackedAttended = _PackedOutput | tuple[_PackedOutput, RowStats]
    _PagedOutput = Float[Tensor, "tokens heads value_width"]
    PagedAttended = _PagedOutput | tuple[_PagedOutput, RowStats]
