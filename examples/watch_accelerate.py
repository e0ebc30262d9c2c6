"""Train a small Llama with Accelerate, watched and clipped; then look at the run: `sharpmax monitor RUN`.

    accelerate launch examples/watch_accelerate.py --out runs/accelerate

It learns to continue a counter from random weights; no data and no network are needed.
"""

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

from sharpmax.torch import Guard, QKClip, watch

VOCABULARY, LENGTH = 32, 24


def counters(count: int, seed: int = 0) -> list[torch.Tensor]:
    """Return sequences that count up from a random number."""
    starts = torch.randint(VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))
    return [(start + torch.arange(LENGTH)) % VOCABULARY for start in starts]


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="runs/accelerate", help="folder of the record")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--threshold", type=float, default=20.0, help="largest logit that is left alone")
    options = parser.parse_args()

    accelerator = Accelerator()
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, **shape))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    loader = DataLoader(counters(16 * options.steps * accelerator.num_processes), batch_size=16)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    model.train()
    watched = watch(model, every=2, record=options.out, step=0, guard=Guard(maximum=10 * options.threshold))
    with QKClip(watched, options.threshold) as clip:
        for ids in loader:
            loss = model(input_ids=ids, labels=ids).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            clip.step(loss=loss)
    accelerator.print(f"loss {loss.item():.3f}; now: sharpmax monitor {options.out}")


if __name__ == "__main__":
    main()
