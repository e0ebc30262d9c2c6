"""What a card costs where models are served: paged decode beside unpaged, and continuous batching beside plain.

    decode      32 sequences, 32 query and 8 key heads of width 128, 32,768 keys each, in shuffled blocks of 16
    batching    64 requests of SmolLM2's shape through transformers' continuous batching, tokens per second

Each result is checked before it is timed. On a CPU both are tiny: to see that it runs.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from rich.table import Table

from sharpmax.bench.attention.contestants import Setting, plain
from sharpmax.bench.attention.timing import timed
from sharpmax.core.policies import PAPER, Constant, LogLinear
from sharpmax.extras import extra
from sharpmax.hf.models.batching import seconds_to_answer
from sharpmax.hf.models.load import must_run_on
from sharpmax.hf.models.shapes import random_model
from sharpmax.hf.sharpen.switch import sharpen
from sharpmax.torch.api import attention
from sharpmax.torch.paged import Pages, paged_attention

with extra("hf"):
    import torch

PARTS = ("decode", "batching")
ON_A_GPU = {"sequences": 32, "heads": 32, "key_heads": 8, "width": 128, "keys": 32768}
ON_A_CPU = {"sequences": 3, "heads": 4, "key_heads": 2, "width": 32, "keys": 512}
BLOCK = 16  # keys; vLLM's own


def measure(
    *, only: Sequence[str] = (), requests: int = 64, new_tokens: int = 64, repeats: int = 9, device: str | None = None
) -> dict[str, Any]:
    """Check, then time, the parts; returns milliseconds and tokens per second, with ratios to plain attention.

    Raises:
        ValueError: an unknown part, a number below 1, or a device that is not there.
        ArithmeticError: a result of ours is wrong.
    """
    if unknown := sorted(set(only) - set(PARTS)):
        raise ValueError(f"only may name {', '.join(PARTS)}, got {', '.join(unknown)}")
    if min(requests, new_tokens, repeats) < 1:
        raise ValueError(f"expected numbers of at least 1, got {min(requests, new_tokens, repeats)}")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    must_run_on(device)
    results = []
    if "decode" in (only or PARTS):
        results += _decode(device, repeats)
    if "batching" in (only or PARTS):
        results += _batching(device, requests, new_tokens, repeats)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return {"device": name, "versions": {"torch": torch.__version__}, "results": results}


def _decode(device: str, repeats: int) -> list[dict[str, Any]]:
    size = ON_A_GPU if device == "cuda" else ON_A_CPU
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    sequences, heads, key_heads, width, keys = size.values()
    generator = torch.Generator(device).manual_seed(0)
    drawn: dict[str, Any] = {"dtype": dtype, "device": device, "generator": generator}
    query = torch.randn(sequences, heads, 1, width, **drawn)
    key, value = (torch.randn(sequences, key_heads, keys, width, **drawn) for _ in range(2))
    pages, ends = _scattered(key, value), torch.arange(sequences + 1, dtype=torch.int32, device=device)
    policies: dict[str, Any] = {"paper": PAPER, "card": _card(heads, device)}

    def paged(policy: Any) -> Any:
        return paged_attention(query[:, :, 0], pages, ends, policy=policy, longest_query=1)

    setting = Setting(1, keys, is_causal=False, device=device)
    plains = {f"plain, {one.name}": one.build(setting) for one in plain(device)}
    calls: dict[str, Callable[[], Any]] = {name: partial(call, query, key, value) for name, call in plains.items()}
    for name, policy in policies.items():
        calls[f"unpaged, {name}"] = partial(attention, query, key, value, policy=policy)
        calls[f"paged, {name}"] = partial(paged, policy)
    calls["paged, constant"] = partial(paged, Constant(1.0))
    with torch.no_grad():
        _must_agree(calls)
        found = timed(calls, device=device, repeats=repeats)
    best = min(found[name].get("milliseconds", float("inf")) for name in plains)
    return [
        {"part": "decode", "case": name, **figures, "ratio": figures.get("milliseconds", float("nan")) / best}
        for name, figures in found.items()
    ]


def _card(heads: int, device: str) -> LogLinear:
    """Return a policy with numbers per head, as a fitted card has them."""
    a, b, c = (torch.full((heads, 1), x, device=device) for x in (0.1, 0.05, 0.05))
    return LogLinear(a=a, b=b, c=c)


def _must_agree(calls: dict[str, Callable[[], Any]]) -> None:
    """Raise ArithmeticError unless each paged result is its unpaged one, and `Constant(1)` plain attention."""
    pairs = {"paged, paper": "unpaged, paper", "paged, card": "unpaged, card"}
    pairs["paged, constant"] = "plain, flash_attention"
    for ours, other in pairs.items():
        got, wanted = calls[ours]().float(), calls[other]()[:, :, 0].float()
        error, largest = (got - wanted).abs().max().item(), wanted.abs().max().item()
        if not error <= 0.02 * largest:
            raise ArithmeticError(f"{ours} differs from {other} by {error:.2e}, of {largest:.2e}")


def _scattered(key: Any, value: Any) -> Pages:
    """Return the keys in blocks that lie in no order, as vLLM keeps them."""
    sequences, key_heads, keys, width = key.shape
    count = sequences * (keys // BLOCK)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).to(key.device)
    cache = key.new_empty((count, key_heads, BLOCK, 2 * width))
    for half, x in ((slice(0, width), key), (slice(width, None), value)):
        blocks = x.reshape(sequences, key_heads, keys // BLOCK, BLOCK, width).transpose(1, 2).flatten(0, 1)
        cache[order, :, :, half] = blocks
    table = order.view(sequences, keys // BLOCK).to(torch.int32)
    lengths = torch.full((sequences,), keys, dtype=torch.int32, device=key.device)
    paged_key, paged_value = cache.transpose(1, 2).split(width, dim=-1)
    return Pages(paged_key, paged_value, table, lengths, longest=keys)


def _batching(device: str, requests: int, new_tokens: int, repeats: int) -> list[dict[str, Any]]:
    shape, dtype = ("smollm2", torch.bfloat16) if device == "cuda" else ("tiny", torch.float32)
    requests, new_tokens = (requests, new_tokens) if device == "cuda" else (min(requests, 4), min(new_tokens, 4))
    model = random_model(shape, context=8192, dtype=dtype, device=device)
    generator = torch.Generator().manual_seed(0)
    longest = 1024 if device == "cuda" else 64
    lengths = torch.randint(longest // 8, longest, (requests,), generator=generator).tolist()
    vocabulary = model.config.vocab_size
    prompts = [torch.randint(1, vocabulary, (n,), generator=generator).tolist() for n in lengths]
    card = _card(model.config.num_attention_heads, device)
    policies = {"plain": None, "constant": Constant(1.0), "paper": PAPER, "card": card}

    def seconds(policy: Any) -> float:
        with nullcontext() if policy is None else sharpen(model, policy):
            return seconds_to_answer(model, prompts, new_tokens=new_tokens)

    taken: dict[str, list[float]] = {name: [] for name in policies}
    for turn in range(1 + min(repeats, 3)):  # the first compiles
        for name, policy in policies.items():
            found = seconds(policy)
            if turn:
                taken[name].append(found)
    rates = {name: requests * new_tokens / min(times) for name, times in taken.items()}
    return [
        {"part": "batching", "case": f"{name}, {requests} requests", "tokens_per_second": rate,
         "share_of_plain": rate / rates["plain"]}
        for name, rate in rates.items()
    ]  # fmt: skip


def show(figures: dict[str, Any]) -> Any:
    """Return the figures as a table for the terminal."""
    table = Table(title=f"serving with a card, {figures['device']}")
    for column in ("part", "case", "milliseconds", "of plain", "tokens/s", "share of plain"):
        table.add_column(column)
    for row in figures["results"]:
        numbers = ("milliseconds", "ratio", "tokens_per_second", "share_of_plain")
        shown = [f"{row[name]:.3g}" if name in row else "" for name in numbers]
        table.add_row(row["part"], row["case"], *(shown if "failed" not in row else [row["failed"], "", "", ""]))
    return table
