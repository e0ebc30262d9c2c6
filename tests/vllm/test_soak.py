"""Ten thousand requests against a server's attention layer: no wrong row, no leak, some cancelled on the way."""

import random
from pathlib import Path

import pytest
import torch

from sharpmax.torch import attention
from tests.vllm import stand_in

BLOCKS, SIZE, AT_ONCE, MOST_TOKENS = 256, 16, 16, 96
POLICY = stand_in.PER_LAYER.for_layer(0)


def resident():
    """Return this process's memory in pages."""
    return int(Path("/proc/self/statm").read_text().split()[1])


class Request:
    """A prompt of random length that goes on for a random number of tokens, unless it is cancelled."""

    def __init__(self, rng):
        self.prompt, more = rng.randint(1, 60), rng.randint(1, 6)
        self.total = self.prompt + more
        self.cancelled_at = rng.randint(1, self.total) if rng.random() < 0.1 else None
        generator = torch.Generator().manual_seed(rng.getrandbits(32))
        self.query = torch.randn(self.total, 4, 8, generator=generator)
        self.key, self.value = torch.randn(2, self.total, 2, 8, generator=generator)
        self.done, self.table = 0, []

    def judge(self, output, count):
        """Compare one chunk's last row with dense attention on the request's own keys."""
        stop = self.done + count
        arrays = (self.query[stop - 1 : stop], self.key[:stop], self.value[:stop])
        expected = attention(*(x.transpose(0, 1)[None] for x in arrays), policy=POLICY)[0, :, 0]
        torch.testing.assert_close(output, expected)


def serve(requests, card, seed=0):
    """Serve so many requests; return how many were judged and cancelled, and memory after a tenth and at the end."""
    rng, layer = random.Random(seed), stand_in.Layer(card, blocks=BLOCKS, size=SIZE)
    free, running, waiting = list(range(BLOCKS)), [], requests
    rng.shuffle(free)
    judged = cancelled = finished = warm = 0
    while waiting or running:
        while waiting and len(running) < AT_ONCE and len(free) > 5:
            running.append(Request(rng))
            waiting -= 1
        batch, tokens = [], 0
        for request in running:
            left = request.prompt - request.done
            count = min(left, rng.choice((8, 32, 64)), MOST_TOKENS - tokens) if left > 0 else 1
            if count <= 0 or tokens >= MOST_TOKENS:
                continue
            need = -(-(request.done + count) // SIZE) - len(request.table)
            if need > len(free):
                continue
            request.table += [free.pop() for _ in range(need)]
            batch.append((request, count))
            tokens += count
        assert batch, "nothing can go on"
        parts = [[getattr(r, n)[r.done : r.done + c] for r, c in batch] for n in ("query", "key", "value")]
        lengths = [r.done + c for r, c in batch]
        output = layer.step(*map(torch.cat, parts), [r.table for r, _ in batch], lengths, [c for _, c in batch])
        last = 0
        for request, count in batch:
            last += count
            if rng.random() < 0.25:
                request.judge(output[last - 1], count)
                judged += 1
            request.done += count
            is_cancelled = request.cancelled_at is not None and request.done >= request.cancelled_at
            if is_cancelled or request.done >= request.total:
                running.remove(request)
                free += request.table
                cancelled += is_cancelled
                finished += 1
                if finished == requests // 10:
                    warm = resident()
    assert sorted(free) == list(range(BLOCKS)), "blocks were lost"
    return judged, cancelled, warm, resident()


def test_two_hundred_requests_have_no_wrong_row(card):
    judged, cancelled, _, _ = serve(200, card)
    assert judged > 100
    assert cancelled > 5


@pytest.mark.slow
def test_ten_thousand_requests_have_no_wrong_row_and_no_leak(card):
    judged, cancelled, warm, end = serve(10_000, card)
    assert judged > 5000
    assert cancelled > 500
    assert end <= 1.02 * warm, f"memory grew from {warm} to {end} pages after the first tenth"
