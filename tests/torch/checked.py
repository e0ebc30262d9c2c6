"""The public functions with their annotated shapes checked, in arguments and in results."""

from functools import partial

from beartype import beartype
from jaxtyping import jaxtyped

import sharpmax.torch
import sharpmax.torch.distributed.attention as distributed
import sharpmax.torch.paged

check = partial(jaxtyped, typechecker=beartype)
attention = check(sharpmax.torch.attention)
attention_varlen = check(sharpmax.torch.attention_varlen)
context_parallel_attention = check(distributed.context_parallel_attention)
paged_attention = check(sharpmax.torch.paged.paged_attention)
row_stats = check(sharpmax.torch.row_stats)
which_implementation = check(sharpmax.torch.which_implementation)
