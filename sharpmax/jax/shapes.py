"""Name the shapes of what the public functions take and return; only the tests check them (`tests/jax/checked.py`)."""

from typing import TYPE_CHECKING, Any, TypeAlias

from jax import Array
from jaxtyping import Bool, Float, Integer, Shaped

from sharpmax.core.stats import RowStats

Query = Float[Array, "batch queries heads width"]
Key = Float[Array, "batch keys key_heads width"]
Value = Float[Array, "batch keys key_heads value_width"]
Mask = Bool[Array, "..."] | None  # broadcasts to (batch, heads, queries, keys)
Bias = Float[Array, "..."] | None  # likewise
Sinks = Float[Array, " heads"] | None
Segments = Integer[Array, "batch queries"] | tuple[Integer[Array, "batch queries"], Integer[Array, "batch keys"]] | None

PackedQuery = Float[Array, "queries heads width"]
PackedKey = Float[Array, "keys key_heads width"]
PackedValue = Float[Array, "keys key_heads value_width"]
Ends = Integer[Array, " documents_and_one"]

Logits = Shaped[Array, "*axes"]
Weights = Float[Array, "*axes"]

if TYPE_CHECKING:  # the type depends on `return_stats`, which a type checker would make every caller tell apart
    Attended: TypeAlias = Any
    PackedAttended: TypeAlias = Any
else:
    _Output = Float[Array, "batch queries heads value_width"]
    Attended = _Output | tuple[_Output, RowStats]
    _PackedOutput = Float[Array, "queries heads value_width"]
    PackedAttended = _PackedOutput | tuple[_PackedOutput, RowStats]
