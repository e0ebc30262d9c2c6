"""Batches that every implementation of paged attention serves."""

import sharpmax
from tests.torch.paged.scattered import Case

PER_HEAD = sharpmax.LogLinear(a=((0.3,), (-0.2,), (0.1,), (0.0,)), b=((0.2,), (0.1,), (0.0,), (0.3,)), c=0.1)
TABLE = sharpmax.Table(entropies=(0.0, 1.0, 3.0), inverse_temperatures=(1.0, 1.2, 2.0))
MIXED = ((40, 33, 5, 70, 1, 18), (1, 1, 5, 20, 1, 3))

CASES = [
    Case("one query each", (1, 17, 90, 40), (1, 1, 1, 1)),
    Case("whole prompts", (1, 17, 33), (1, 17, 33)),
    Case("a prompt's chunks and single tokens", *MIXED, policy=PER_HEAD),
    Case("places, not blocks", *MIXED, layout="transformers", policy=PER_HEAD),
    Case("places, one query each", (1, 17, 90, 40), (1, 1, 1, 1), layout="transformers", policy=TABLE),
    Case("blocks of 32", *MIXED, size=32, policy=TABLE),
    Case("blocks of 64", (130, 64, 65), (1, 1, 1), size=64, policy=PER_HEAD),
    Case("blocks of 128", (130, 128, 3), (2, 1, 3), size=128, policy=sharpmax.LengthScaled.log_n(8)),
    Case("blocks of 256", (260, 255), (1, 1), size=256),
    Case("a window", *MIXED, window=7, policy=PER_HEAD),
    Case("a window, one query each", (1, 17, 90, 40), (1, 1, 1, 1), window=20, policy=PER_HEAD),
    Case("a softcap and sinks", *MIXED, softcap=5.0, sinks=True, policy=PER_HEAD),
    Case("sinks, one query each", (1, 17, 90), (1, 1, 1), sinks=True),
    Case("by position", *MIXED, policy=sharpmax.LengthScaled.llama4(16, 0.5)),
    Case("one key head", (30, 12), (4, 1), heads=8, key_heads=1, policy=sharpmax.Constant(1.3)),
    Case("three heads to a key head", (30, 12), (4, 1), heads=9, key_heads=3, width=24, value_width=40),
    Case("sequences without queries", (30, 12, 9), (0, 3, 0), policy=TABLE),
    Case("more keys than trained with", *MIXED, policy=sharpmax.Beyond(16, 0.5, start=0.5)),
    Case("no gradient through beta", *MIXED, size=32, policy=sharpmax.detach(PER_HEAD)),
    Case("a policy per head", (50, 12), (3, 1), policy=sharpmax.PerHead((sharpmax.PAPER, TABLE) * 2)),
]  # fmt: skip
