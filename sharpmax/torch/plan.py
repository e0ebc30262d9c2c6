"""The plan of one call: which implementation serves it, by which kernels, and why each faster one does not.

`dispatch` makes a plan, an implementation executes it, `which_implementation` shows it. A code path is a name below.
"""

from typing import NamedTuple

from sharpmax.torch.policy_kinds import KernelPolicy

DENSE = "dense"
ONE_PASS, ONE_QUERY, THREE_STEPS = "one pass", "one query", "three steps"
STOCK = "stock attention"
SHARPENED_QUERY, SHARPENED_QUERY_PER_HEAD = "sharpened query", "sharpened query, per key head"
DECODE, FUSED, SOLVED_FIRST = "decode", "fused", "solved first"
TWO_PASSES, SPECULATIVE, LEADERS = "two passes", "speculative", "speculative, with leaders"
WITHOUT_GRADIENT = "without a gradient"

KERNELS = {
    DENSE: "every logit at once, differentiated by autograd",
    ONE_PASS: "statistics, policy and output of each chunk of rows, one product with the keys",
    ONE_QUERY: "statistics, policy and output of all rows at once: one product with the keys, one with the values",
    THREE_STEPS: "statistics, the policy in PyTorch, then the output",
    STOCK: "PyTorch's fastest attention alone, because beta is one number for all rows",
    SHARPENED_QUERY: "our kernels write beta·q, from statistics if the policy reads any; then PyTorch's attention",
    SHARPENED_QUERY_PER_HEAD: "as 'sharpened query', for one key head at a time, to save memory",
    DECODE: "our decode kernels: keys and values are read once, the scores are kept between",
    SOLVED_FIRST: "our kernels: statistics, the solution for beta, the output",
    FUSED: "our fused kernel: statistics, beta and output of a tile of queries",
    TWO_PASSES: "our Hopper kernels: statistics and beta, then attention with beta",
    SPECULATIVE: "our Hopper kernels: a sample of the tiles, then the passes that it calls for",
    LEADERS: "our Hopper kernels: a sample of the tiles, then the passes that it calls for",
    WITHOUT_GRADIENT: "our kernels; the GPU and the addresses of real tensors say which",
}
"""What each code path runs."""

ON_DEVICE = {
    SPECULATIVE: "one pass without beta if few sampled rows are sharpened, else two passes",
    LEADERS: (
        "statistics and the values of the leading keys if one key takes nearly all of most sampled rows; "
        "one pass without beta if few of them are sharpened; else two passes"
    ),
}
"""What the device itself decides at run time, from the rows."""


class Plan(NamedTuple):
    """Which implementation serves a request, its code path, and why each faster implementation refuses."""

    implementation: str
    path: str
    refused: dict[str, str]
    policy: KernelPolicy | None  # the policy as numbers, where a kernel evaluates it

    @property
    def kernels(self) -> str:
        """Describe what runs."""
        return KERNELS[self.path]

    @property
    def decided_on_device(self) -> str | None:
        """Describe what the device chooses at run time, or return None."""
        return ON_DEVICE.get(self.path)

    def __str__(self) -> str:
        lines = [f"{self.implementation}, {self.path}: {self.kernels}"]
        if self.decided_on_device is not None:
            lines.append(f"  decided on the device: {self.decided_on_device}")
        return "\n".join([*lines, *(f"  not {name}: {reason}" for name, reason in self.refused.items())])
