"""One process of two: watches and clips a model on its half of each batch; writes what it read to a file."""

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sharpmax.torch import QKClip, watch
from tests.torch.watching.small import batch, model

STEPS, THRESHOLD, ROWS = 3, 0.5, 4
WAYS = ("ddp", "fsdp")


def run(way, folder, rank=0, processes=1):
    """Train some clipped steps on this process's rows; return each step's reading, and the weights after."""
    net = model()
    if way == "ddp":
        net = DistributedDataParallel(net)
    elif way == "fsdp":
        mesh = init_device_mesh("cpu", (processes,))  # unless told, FSDP moves the model to a GPU if there is one
        for block in net:
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    clip = QKClip(watch(net, record=folder / f"{way}.jsonl"), THRESHOLD)
    read = []
    clip.watch.listeners.append(lambda step, reading: read.append(reading))
    share = ROWS // processes
    for step in range(STEPS):
        net(batch(step, ROWS)[rank * share : (rank + 1) * share]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        clip.step()
    clip.close()
    weights = {n.removeprefix("module."): p.full_tensor() if way == "fsdp" else p for n, p in net.named_parameters()}
    with watch(model(), record=folder / f"{way}.jsonl") as resumed:
        next_step = resumed.current_step
    return {
        "next step": torch.tensor(next_step),
        "maximum": torch.stack([torch.tensor(r.maximum) for r in read]),
        "sums": torch.stack([torch.tensor(r.sums) for r in read]),
        "bins": torch.stack([torch.tensor(r.bins) for r in read]),
        "scaled": torch.stack([torch.tensor(r.scaled) for r in read]),
        **{name: weight.detach() for name, weight in weights.items()},
    }


def main(rank, folder):
    """Run every way, and write what it gave."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.save({way: run(way, folder, rank, 2) for way in WAYS}, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(int(sys.argv[1]), Path(sys.argv[2]))
