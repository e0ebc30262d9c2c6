"""Ask a running server whether its card acts, and what it costs: `sharpmax serve-check`.

The lookups of `evaluate` go to the server's completions over HTTP, all of a batch at once; beside it, if it is given,
to a server without the card. No model is loaded here: what is judged is what users get.
"""

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sharpmax import defaults
from sharpmax.cards import card_file
from sharpmax.commands.completions import Reply, Server, check_address, check_seconds
from sharpmax.core.cards import Card, load_card
from sharpmax.core.checks import is_count, is_number
from sharpmax.runs.progress import stage
from sharpmax.tasks.prompt import Prompt
from sharpmax.tasks.prompts import draw, seed_of

KINDS = ("plain", "policy")  # of a card's figures: without it, and with it
SAME = 1e-9  # shares of right answers that differ by less are the same


def serve_check(
    url: str, *, plain: str | None = None, card: str | Path | None = None, model: str | None = None,
    sizes: Sequence[int] = defaults.EXAM_SIZES, prompts: int = defaults.SERVED_PROMPTS, seed: int = defaults.SEED,
    together: int = defaults.SERVED_TOGETHER, timeout: float = defaults.SERVED_TIMEOUT,
) -> dict[str, Any]:  # fmt: skip
    """Ask the server at `url` lookups of `sizes` entries; compare with the server `plain`, or with the card's record.

    The verdict is "acts" where an answer differs from the plain server's, and both are the same when they are asked for
    again; or the accuracy is nearer to what the card was judged to have than to the plain model's; "does not act" where
    not; "unknown" where nothing says: no answer of a server has a text, or the card's record is the same with it and
    without.

    Raises:
        ValueError: no comparison was given, a number below 1, a card without figures that can be read, or what answers
            is no server of completions.
        OSError: a server cannot be reached or takes too long, or the card cannot be read.
    """
    for name, numbers in (("sizes", sizes), ("prompts", [prompts]), ("together", [together])):
        if not numbers or not all(is_count(number, least=1) for number in numbers):
            raise ValueError(f"{name} must be 1 or more, got {', '.join(map(str, numbers)) or 'none'}")
    check_seconds("timeout", timeout)
    for address in filter(None, (url, plain)):
        check_address(address)
    found = None if card is None else load_card(card_file(card))
    if found is None and plain is None:
        raise ValueError("name a plain server (--plain URL) or the card (--card FILE): one server alone tells nothing")
    recorded = _recorded(found, card) if plain is None and found is not None else {}
    sizes, of_report = list(dict.fromkeys(sizes)), seed_of(seed, "report")  # a size twice asks the same questions
    asked = [draw("lookup", size, seed=of_report, index=index) for size in sizes for index in range(prompts)]
    carded = _asked(url, model, asked, together, timeout)
    result: dict[str, Any] = {"url": url, "card": None if card is None else str(card), "sizes": sizes}
    result["carded"] = _judged(asked, *carded)
    if plain is not None:
        replies = _asked(plain, model, asked, together, timeout)
        result["plain"] = _judged(asked, *replies)
        differing = [(q, a, b) for q, a, b in zip(asked, carded[0], replies[0], strict=True) if a.text != b.text]
        repeated = [q for q, _, _ in differing]
        again = [_asked(of, model, repeated, together, timeout)[0] for of in (url, plain) if repeated]
        steady = [a.text == c.text and b.text == d.text for (_, a, b), c, d in zip(differing, *again, strict=True)]
        result |= {"differ": sum(steady), "unsteady": len(differing) - sum(steady)}
        result["verdict"] = "acts" if result["differ"] else "unknown" if result["unsteady"] else "does not act"
    else:
        result |= _by_record(recorded, sizes, result["carded"])
    said = [carded[0]] if plain is None else [carded[0], replies[0]]
    if not all(any(reply.text for reply in of) for of in said):  # who says nothing differs from who does
        result["verdict"] = "unknown"
    return result


def _recorded(card: Card, source: Any) -> dict[int, dict[str, float]]:
    """Return what the card records of lookups by size: the accuracy with it and without; ValueError names `source`."""
    try:
        lookups = card.held_out.get("tasks", {}).get("lookup", {})
        found = {int(size): {kind: of["accuracy"][kind] for kind in KINDS} for size, of in lookups.items()}
        if not all(is_number(share) and 0 <= share <= 1 for shares in found.values() for share in shares.values()):
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(
            f"the card {source} does not record its accuracy as `sharpmax evaluate` finds it (held_out: tasks, lookup, "
            "size, accuracy, plain and policy from 0 to 1): name a plain server instead, --plain URL"
        ) from None
    return found


def _by_record(recorded: dict[int, dict[str, float]], sizes: Sequence[int], carded: dict[str, Any]) -> dict[str, Any]:
    """Return which of the card's own figures the accuracy is nearer to: with the policy, or without.

    `judged_at` says by size asked which size of the record it is held against.
    """
    judged_at = {size: size for size in sizes if size in recorded}
    if not judged_at and recorded:  # sizes that it was not judged on: the nearest is a fair guess
        judged_at = {size: min(recorded, key=lambda judged: (abs(judged - size), judged)) for size in sizes}
    if not judged_at:
        return {"verdict": "unknown"}
    known = {size: recorded[judged] for size, judged in judged_at.items()}
    expected = {kind: statistics.mean(figures[kind] for figures in known.values()) for kind in KINDS}
    measured = statistics.mean(carded["accuracy_by_size"][size] for size in known)
    apart = abs(measured - expected["plain"]) - abs(measured - expected["policy"])
    verdict = "unknown" if abs(apart) < SAME else "acts" if apart > 0 else "does not act"
    return {"recorded": expected, "measured": measured, "judged_at": judged_at, "verdict": verdict}


def _asked(
    url: str, model: str | None, prompts: list[Prompt], together: int, timeout: float
) -> tuple[list[Reply], float]:
    """Return the replies in order and the seconds that all of them took."""
    server = Server(url, timeout=timeout)
    name = model or server.first_model()
    with stage(f"first answer of {url}"):
        server.ask(name, prompts[0].text)  # the first call of a server may compile
    started, replies = time.perf_counter(), []
    with stage(f"asking {url}", len(prompts)) as advance, ThreadPoolExecutor(together) as pool:
        for reply in pool.map(lambda prompt: server.ask(name, prompt.text), prompts):
            replies.append(reply)
            advance()
    return replies, time.perf_counter() - started


def _judged(prompts: list[Prompt], replies: list[Reply], seconds: float) -> dict[str, Any]:
    right = [reply.text.startswith(p.answer) for p, reply in zip(prompts, replies, strict=True)]
    sizes = dict.fromkeys(prompt.size for prompt in prompts)
    firsts = [reply.first for reply in replies if reply.text]
    of_size = {n: [r for p, r in zip(prompts, right, strict=True) if p.size == n] for n in sizes}
    return {
        "accuracy": statistics.mean(right),
        "accuracy_by_size": {size: statistics.mean(rows) for size, rows in of_size.items()},
        "questions": len(right),
        "tokens_per_second": sum(reply.tokens for reply in replies) / seconds,
        "first_token_seconds": statistics.median(firsts) if firsts else None,
    }


NEXT = {
    "acts": "serve with it; more questions at your own lengths: --sizes N … --prompts N",
    "does not act": "look for 'attention is served with a card' in the server's log, and for the card's path",
    "unknown": "name a plain server of the same model beside it: --plain URL, or ask more: --prompts N",
}
"""What to do after each verdict."""


def print_serve_check(found: dict[str, Any]) -> None:
    """Print one line per server, what the card costs, the verdict, and what to do next."""
    for name in ("plain", "carded"):
        if name in found:
            figures = found[name]
            first = figures["first_token_seconds"]
            came = "no answer has a text" if first is None else f"first token after {first:.2f} s"
            print(
                f"{name:7} {figures['accuracy']:7.1%} of {figures['questions']} right, "
                f"{figures['tokens_per_second']:.1f} tokens/s, {came}"
            )
    if "plain" in found:
        cost = found["carded"]["tokens_per_second"] / max(found["plain"]["tokens_per_second"], 1e-9)
        print(f"the card: {cost:.2f} of the plain server's tokens/s; {found['differ']} answers differ")
        if found["unsteady"]:
            print(f"{found['unsteady']} answers came out otherwise when they were asked for again: they tell nothing")
    elif "recorded" in found:
        recorded, at = found["recorded"], found["judged_at"]
        asked, judged = (", ".join(map(str, dict.fromkeys(sizes))) for sizes in (at, at.values()))
        print(
            f"the card's record at {judged} entries: {recorded['policy']:.1%} with it, {recorded['plain']:.1%} "
            f"without; here at {asked}: {found['measured']:.1%}"
        )
    print({"acts": "the card acts", "does not act": "the card does NOT act"}.get(found["verdict"], "nothing tells"))
    print(f"next: {NEXT[found['verdict']]}")
