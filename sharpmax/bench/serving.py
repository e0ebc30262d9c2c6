"""What a card costs where models are served: paged decode beside unpaged, and continuous batching beside plain.

    decode      32 sequences, 32 query and 8 key heads of width 128, 32,768 keys each, in shuffled blocks of 16
    batching    64 requests of SmolLM2's shape through transformers' continuous batching, tokens per second

Each contestant is checked before it is timed, and told as soon as it was. On a CPU both parts are tiny: to see that it
runs.

Plain batching is PyTorch's attention with a mask, which transformers takes where flash-attn is not installed, with its
steps as CUDA graphs and without; shares are of the faster. A manager answers rounds of new prompts of the same lengths.
The first compiles and captures graphs, and has a column of its own.
"""

import gc
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from rich.table import Table

from sharpmax.bench.attention.contestants import Setting, plain
from sharpmax.bench.attention.timing import attempt, timed
from sharpmax.core.policies import PAPER, Constant, LogLinear
from sharpmax.extras import extra
from sharpmax.flags import require_among, require_at_least
from sharpmax.hf.models.batching import Round, answered
from sharpmax.hf.models.shapes import random_model
from sharpmax.hf.sharpen.switch import sharpen
from sharpmax.runs.progress import say
from sharpmax.torch.api import attention
from sharpmax.torch.device import device_or_best, must_run_on
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

    A part or contestant that fails has its reason for a result: the others are still measured.

    Raises:
        ValueError: an unknown part, a number below 1, or a device that is not there.
    """
    require_among("parts", only, PARTS)
    require_at_least(1, requests=requests, new_tokens=new_tokens, repeats=repeats)
    device = device_or_best(device)
    must_run_on(device)
    results = []
    if "decode" in (only or PARTS):
        results += _decode(device, repeats)
        _free(device)
    if "batching" in (only or PARTS):
        results += _batching(device, requests, new_tokens, repeats)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return {"device": name, "versions": {"torch": torch.__version__}, "results": results}


def wrong(figures: dict[str, Any]) -> list[str]:
    """Return what of ours was not timed because it failed or erred: a run with any has not passed."""
    rows = figures["results"]
    return [f"{r['part']}, {r['case']}: {r['failed']}" for r in rows if "failed" in r and "plain" not in r["case"]]


def _free(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


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
        judged = {ours: attempt(partial(_must_agree, calls, ours, other)) for ours, other in AGREE.items()}
        sound = {name: call for name, call in calls.items() if "failed" not in judged.get(name, {})}
        found = judged | timed(sound, device=device, repeats=repeats)
    best = min(found[name].get("milliseconds", float("inf")) for name in plains)
    results = []
    for name, figures in found.items():
        row = {"part": "decode", "case": name, **figures}
        if "milliseconds" in row:
            row["ratio"] = row["milliseconds"] / best
            unpaged = found.get(name.replace("paged", "unpaged", 1), {}) if name.startswith("paged") else {}
            if "milliseconds" in unpaged:
                row["of_unpaged"] = row["milliseconds"] / unpaged["milliseconds"]
        results.append(row)
        say(_in_words(row))
    return results


def _card(heads: int, device: str) -> LogLinear:
    """Return a policy with numbers per head, as a fitted card has them."""
    a, b, c = (torch.full((heads, 1), x, device=device) for x in (0.1, 0.05, 0.05))
    return LogLinear(a=a, b=b, c=c)


AGREE = {"paged, paper": "unpaged, paper", "paged, card": "unpaged, card", "paged, constant": "plain, flash_attention"}
"""What each paged result has to equal."""


def _must_agree(calls: dict[str, Callable[[], Any]], ours: str, other: str) -> dict[str, Any]:
    """Raise ArithmeticError unless our paged result is the other one."""
    got, wanted = calls[ours]().float(), calls[other]()[:, :, 0].float()
    error, largest = (got - wanted).abs().max().item(), wanted.abs().max().item()
    if not error <= 0.02 * largest:
        raise ArithmeticError(f"{ours} differs from {other} by {error:.2e}, of {largest:.2e}")
    return {"error": error}


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
    judged = random_model(shape, context=8192, dtype=torch.float32, device=device)
    for one_model in (model, judged):
        one_model.set_attn_implementation("sdpa")
    longest = 1024 if device == "cuda" else 64
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(longest // 8, longest, (requests,), generator=generator).tolist()

    def prompts(count: int) -> list[list[int]]:
        """Draw new ones, because what was answered before would be found in the cache; transformers sorts them so."""
        last = model.config.vocab_size - 1
        drawn = [torch.randint(1, last // 2, (n,), generator=generator).tolist() for n in lengths[:count]]
        return [[last - i % (last // 2), *tokens[1:]] for i, tokens in enumerate(drawn)]

    few, rounds = prompts(JUDGED), [prompts(requests) for _ in range(1 + min(repeats, ROUNDS))]
    ways: dict[str, dict[str, Any]] = {"plain": {}}
    if device == "cuda":
        ways["plain, CUDA graphs"] = {"graphs": True}
    policies = {"constant": Constant(1.0), "paper": PAPER, "card": _card(model.config.num_attention_heads, device)}
    results: list[dict[str, Any]] = []
    for name in (*ways, *policies):
        policy, how = policies.get(name), ways.get(name, {})
        row: dict[str, Any] = {"part": "batching", "case": f"{name}, {requests} requests"}

        def one(policy: Any = policy, how: dict[str, Any] = how) -> dict[str, Any]:
            with nullcontext() if policy is None else sharpen(judged, policy):
                regret = _judged(judged, few, answered(judged, [few], new_tokens=4, **how)[0])
            with nullcontext() if policy is None else sharpen(model, policy):
                found = answered(model, rounds, new_tokens=new_tokens, seconds=SECONDS, **how)
            rates = [requests * new_tokens / one.seconds for one in found]
            return {"regret": regret, "first_round": rates[0], "tokens_per_second": max(rates[1:] or rates)}

        row |= attempt(one)
        plains = [r["tokens_per_second"] for r in (*results, row) if "plain" in r["case"] and "tokens_per_second" in r]
        if "tokens_per_second" in row and plains:
            row["share_of_plain"] = row["tokens_per_second"] / max(plains)
        results.append(row)
        say(_in_words(row))
        _free(device)
    return results


JUDGED = 6  # requests whose answers are checked
ROUNDS = 2  # timed at most
SECONDS = 6.0  # after which no further round is begun
REGRET = 0.01  # of a row of logits, from its mean to its maximum
"""Judged in float32. Sharpened attention of random weights is so near to a choice that in bfloat16 one prompt read in
one piece and token by token ends in other words: the same weights' own `generate` is then off by as much as 0.5."""


def _judged(model: Any, prompts: list[list[int]], found: Round) -> float:
    """Return how far the worst answered token is below the model's own choice; raises ArithmeticError beyond `REGRET`.

    The model reads each prompt with its answer by itself, without a manager. The next token depends on the answer so
    far, so a tie that falls otherwise is no error. Of other keys or another policy, SmolLM2's shape is 0.8 or more off.
    """
    worst = 0.0
    for prompt, answer in zip(prompts, found.answers, strict=True):
        ids = torch.tensor([prompt + answer[:-1]], device=model.device)
        with torch.no_grad():
            logits = model(ids, use_cache=False).logits[0, len(prompt) - 1 :].float()
        best = logits.max(-1).values
        below = best - logits.gather(-1, torch.tensor(answer, device=model.device)[:, None])[:, 0]
        worst = max(worst, (below / (best - logits.mean(-1))).max().item())
    if not worst <= REGRET:
        raise ArithmeticError(f"batched answers are not the model's own: {worst:.2f} of the way to its mean logit")
    return worst


def _in_words(row: dict[str, Any]) -> str:
    """Return a result as a line, for who waits."""
    parts = {
        "failed": "failed: {}", "milliseconds": "{:.3g} ms", "ratio": "{:.3f} of plain",
        "of_unpaged": "{:.3f} of unpaged", "tokens_per_second": "{:.0f} tokens/s",
        "first_round": "{:.0f} in the first round", "share_of_plain": "{:.2f} of plain",
    }  # fmt: skip
    said = [text.format(row[name]) for name, text in parts.items() if name in row]
    return f"{row['part']}, {row['case']}: {', '.join(said)}"


def show(figures: dict[str, Any]) -> Any:
    """Return the figures as a table for the terminal."""
    table = Table(title=f"serving with a card, {figures['device']}")
    numbers = {
        "milliseconds": "ms", "ratio": "of plain", "of_unpaged": "of unpaged", "tokens_per_second": "tokens/s",
        "first_round": "first round", "share_of_plain": "share of plain",
    }  # fmt: skip
    for column in ("part", "case", *numbers.values()):
        table.add_column(column)
    for row in figures["results"]:
        shown = [f"{row[name]:.3g}" if name in row else "" for name in numbers]
        table.add_row(row["part"], row["case"], *(shown if "failed" not in row else [row["failed"], *shown[1:]]))
    return table
