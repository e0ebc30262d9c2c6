"""Ask a running server whether its card acts, and what it costs: `sharpmax serve-check`.

The lookups of `evaluate` go to the server's completions over HTTP, all of a batch at once; beside it, if it is given,
to a server without the card. No model is loaded here: what is judged is what users get.
"""

import json
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharpmax import defaults
from sharpmax.core.cards import Card, load_card
from sharpmax.tasks.prompt import Prompt
from sharpmax.tasks.prompts import draw, seed_of

ANSWER_TOKENS = 8  # an answer is five characters, which tokenizers cut into one to five


@dataclass(frozen=True)
class Reply:
    """One answer: its text, seconds until its first token and until its last, and its tokens."""

    text: str
    first: float
    last: float
    tokens: int


def serve_check(
    url: str, *, plain: str | None = None, card: str | Path | None = None, model: str | None = None,
    sizes: Sequence[int] = defaults.EXAM_SIZES, prompts: int = defaults.SERVED_PROMPTS, seed: int = defaults.SEED,
    together: int = defaults.SERVED_TOGETHER, timeout: float = defaults.SERVED_TIMEOUT,
) -> dict[str, Any]:  # fmt: skip
    """Ask the server at `url` lookups of `sizes` entries; compare with the server `plain`, or with the card's record.

    The verdict is "acts" where the answers differ from the plain server's, or the accuracy is nearer to what the card
    was judged to have than to the plain model's; "does not act" where not; "unknown" where nothing says.

    Raises:
        ValueError: no comparison was given, or what answers is no server of completions.
        OSError: a server cannot be reached, or the card cannot be read.
    """
    found = None if card is None else load_card(card)
    if found is None and plain is None:
        raise ValueError("name a plain server (--plain URL) or the card (--card FILE): one server alone tells nothing")
    of_report = seed_of(seed, "report")
    asked = [draw("lookup", size, seed=of_report, index=index) for size in sizes for index in range(prompts)]
    carded = _asked(url, model, asked, together, timeout)
    result: dict[str, Any] = {"url": url, "card": None if card is None else str(card), "sizes": list(sizes)}
    result["carded"] = _judged(asked, *carded)
    if plain is not None:
        replies = _asked(plain, model, asked, together, timeout)
        result["plain"] = _judged(asked, *replies)
        result["differ"] = sum(a.text != b.text for a, b in zip(carded[0], replies[0], strict=True))
        result["verdict"] = "acts" if result["differ"] else "does not act"
    else:
        result |= _by_record(found, sizes, result["carded"])
    return result


def _by_record(card: Card | None, sizes: Sequence[int], carded: dict[str, Any]) -> dict[str, Any]:
    """Return which of the card's own figures the accuracy is nearer to: with the policy, or without."""
    recorded = card.held_out.get("tasks", {}).get("lookup", {}) if card is not None else {}
    known = {size: recorded[str(size)]["accuracy"] for size in sizes if str(size) in recorded}
    if not known and recorded:  # sizes that it was not judged on: the nearest is a fair guess
        nearest = {size: min((abs(int(judged) - size), judged) for judged in recorded)[1] for size in sizes}
        known = {size: recorded[judged]["accuracy"] for size, judged in nearest.items()}
    if not known:
        return {"verdict": "unknown"}
    expected = {kind: statistics.mean(figures[kind] for figures in known.values()) for kind in ("plain", "policy")}
    measured = statistics.mean(carded["accuracy_by_size"][size] for size in known)
    is_nearer = abs(measured - expected["policy"]) < abs(measured - expected["plain"])
    return {"recorded": expected, "verdict": "acts" if is_nearer else "does not act"}


def _asked(
    url: str, model: str | None, prompts: list[Prompt], together: int, timeout: float
) -> tuple[list[Reply], float]:
    """Return the replies in order and the seconds that all of them took."""
    name = model or _name(url, timeout)
    _reply(url, name, prompts[0].text, timeout)  # the first call of a server may compile
    started = time.perf_counter()
    with ThreadPoolExecutor(together) as pool:
        replies = list(pool.map(lambda prompt: _reply(url, name, prompt.text, timeout), prompts))
    return replies, time.perf_counter() - started


def _judged(prompts: list[Prompt], replies: list[Reply], seconds: float) -> dict[str, Any]:
    right = [reply.text.startswith(p.answer) for p, reply in zip(prompts, replies, strict=True)]
    sizes = dict.fromkeys(prompt.size for prompt in prompts)
    of_size = {n: [r for p, r in zip(prompts, right, strict=True) if p.size == n] for n in sizes}
    return {
        "accuracy": statistics.mean(right),
        "accuracy_by_size": {size: statistics.mean(rows) for size, rows in of_size.items()},
        "questions": len(right),
        "tokens_per_second": sum(reply.tokens for reply in replies) / seconds,
        "first_token_seconds": statistics.median(reply.first for reply in replies),
    }


def _name(url: str, timeout: float) -> str:
    with _opened(f"{url.rstrip('/')}/v1/models", None, timeout) as answer:
        said = answer.read()
    try:
        return str(json.loads(said)["data"][0]["id"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"{url} does not list its models as an OpenAI-compatible server does") from error


def _reply(url: str, model: str, prompt: str, timeout: float) -> Reply:
    """Ask for one completion, token by token, greedily."""
    body = {"model": model, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0, "stream": True}
    started = time.perf_counter()
    first, text, tokens = 0.0, "", 0
    with _opened(f"{url.rstrip('/')}/v1/completions", body, timeout) as answer:
        for event in _events(answer):
            piece = event["choices"][0].get("text") if event.get("choices") else None
            if piece:
                first = first or time.perf_counter() - started
                text, tokens = text + piece, tokens + 1
    return Reply(text, first, time.perf_counter() - started, tokens)


def _events(answer: Any) -> Iterator[dict[str, Any]]:
    for line in answer:
        said = line.decode("utf-8", "replace").strip().removeprefix("data:").strip()
        if said == "[DONE]":
            return
        if said.startswith("{"):
            event = json.loads(said)
            if "error" in event:
                raise ValueError(f"the server says: {str(event['error'])[:200]}")
            yield event


def _opened(url: str, body: dict[str, Any] | None, timeout: float) -> Any:
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"expected an address that begins with http:// or https://, got {url!r}")
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    try:
        return urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        said = error.read(300).decode("utf-8", "replace")
        raise ValueError(f"{url} answers {error.code}: {' '.join(said.split())}") from error
    except urllib.error.URLError as error:
        raise OSError(f"cannot reach {url}: {error.reason}") from error


def print_serve_check(found: dict[str, Any]) -> None:
    """Print one line per server, what the card costs, and the verdict."""
    for name in ("plain", "carded"):
        if name in found:
            figures = found[name]
            print(
                f"{name:7} {figures['accuracy']:7.1%} of {figures['questions']} right, "
                f"{figures['tokens_per_second']:.1f} tokens/s, first token after {figures['first_token_seconds']:.2f} s"
            )
    if "plain" in found:
        cost = found["carded"]["tokens_per_second"] / max(found["plain"]["tokens_per_second"], 1e-9)
        print(f"the card: {cost:.2f} of the plain server's tokens/s; {found['differ']} answers differ")
    elif "recorded" in found:
        recorded = found["recorded"]
        print(f"the card's record: {recorded['policy']:.1%} with it, {recorded['plain']:.1%} without")
    print({"acts": "the card acts", "does not act": "the card does NOT act"}.get(found["verdict"], "nothing tells"))
