"""One process of several: context-parallel attention on its stretch of the sequence; writes what it got to a file."""

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from sharpmax import PAPER, Constant, LengthScaled
from sharpmax.torch.distributed import rows
from sharpmax.torch.distributed.attention import context_parallel_attention
from tests.torch.budgets import STATISTICS

LENGTHS = (24, 9, 15)  # of queries and keys on each process: stretches may differ
rows.ELEMENTS = 2**9  # cut even these short rows into parts


def sequence():
    """Return the whole sequence, the same in every process."""
    g = torch.Generator().manual_seed(0)
    n = sum(LENGTHS)
    draw = [torch.randn(2, heads, n, 8, generator=g, dtype=torch.float64) for heads in (4, 2, 2)]
    mask = torch.rand(2, 1, n, n, generator=g) < 0.5
    mask[:, :, 5] = False
    return {
        **dict(zip(("query", "key", "value"), (2 * x for x in draw), strict=True)),
        "mask": mask,
        "bias": torch.randn(1, 4, n, n, generator=g, dtype=torch.float64),
        "sinks": torch.linspace(-1, 1, 4, dtype=torch.float64),
    }


def spread(stats):
    """A policy of one's own: it reads every statistic."""
    return 1.0 + 0.1 * (stats.maximum - stats.minimum).clamp(max=50) + 0.05 * stats.variance


CASES = {
    "causal": ({"is_causal": True, "policy": PAPER}, ()),
    "everything": ({"window": (17, 4), "softcap": 5.0, "policy": PAPER}, ("mask", "bias", "sinks")),
    "by count": ({"is_causal": True, "policy": LengthScaled.ssmax(0.4)}, ("mask",)),
    "by position": ({"is_causal": True, "policy": LengthScaled.llama4(floor_scale=8)}, ()),
    "constant": ({"is_causal": True, "policy": Constant(2.0)}, ("sinks",)),
    "a policy of one's own": ({"policy": spread}, ("sinks", "bias")),
}


def probe(shape, rows):
    """Weights that tell every element of these rows (axis 2) of the whole from the others."""
    whole = (*shape[:2], sum(LENGTHS), *shape[3:])
    return torch.cos(torch.arange(torch.Size(whole).numel(), dtype=torch.float64)).view(whole)[:, :, rows]


def run(call, case, rows):
    """Return output, statistics and gradients of a loss that weighs each of them differently."""
    options, extras = CASES[case]
    whole = sequence()
    first = [whole[n][:, :, rows].requires_grad_() for n in ("query", "key", "value")]
    rest = {n: whole[n] if n == "sinks" else whole[n][:, :, rows] for n in extras}
    leaves = first + [rest[n].requires_grad_() for n in ("bias", "sinks") if n in rest]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        output, stats = call(*first, **rest, **options, return_stats=True)
    loss = (output * probe(output.shape, rows)).sum()
    for name in STATISTICS:
        field = getattr(stats, name)
        if name != "count":
            loss = loss + (torch.where(field.isfinite(), field, 0) * probe(field.shape, rows)).sum()
    gradients = torch.autograd.grad(loss, leaves)
    found = {"output": output, **{n: getattr(stats, n) for n in STATISTICS}}
    names = ["query", "key", "value", *(n for n in ("bias", "sinks") if n in rest)]
    found |= {f"gradient of {n}": g for n, g in zip(names, gradients, strict=True)}
    return {n: t.detach() for n, t in found.items()}


def main(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=len(LENGTHS))
    rows = slice(sum(LENGTHS[:rank]), sum(LENGTHS[: rank + 1]))
    torch.save({case: run(context_parallel_attention, case, rows) for case in CASES}, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), Path(sys.argv[2]))
