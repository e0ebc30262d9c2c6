"""A server's attention layer, without vLLM: prompts in chunks, single tokens and shared blocks as dense attention."""

import pytest
import torch

from sharpmax.torch import attention
from tests.vllm import stand_in
from tests.vllm.stand_in import PER_LAYER


def drawn(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, 8, generator=generator), *torch.randn(2, count, 2, 8, generator=generator)


def dense(query, key, value, policy, **options):
    arrays = (x.transpose(0, 1)[None] for x in (query, key, value))
    return attention(*arrays, policy=policy, is_causal=True, **options)[0].transpose(0, 1)


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({}, {}),
        ({"index": 1}, {}),
        ({"sliding_window": 9}, {"window": 9}),
        ({"sliding_window": (8, 0)}, {"window": 9}),
        ({"logits_soft_cap": 3.0}, {"softcap": 3.0}),
        ({"sinks": torch.tensor([0.5, 1.0, -1.0, 0.0])}, {"sinks": torch.tensor([0.5, 1.0, -1.0, 0.0])}),
    ],
    ids=["plain", "another layer", "a window", "a window's ends", "a softcap", "sinks"],
)
def test_chunks_and_single_tokens_give_what_the_whole_gives(card, changes, options):
    layer = stand_in.Layer(card, **changes)
    policy = PER_LAYER.for_layer(changes.get("index", 0))
    long, short = drawn(40), drawn(21, seed=1)
    tables, got = ([7, 3, 5], [1, 9]), ([], [])
    for done, chunk in (((0, 0), (16, 20)), ((16, 20), (23, 1)), ((39, 21), (1, 0))):
        parts = [[x[d : d + c] for x in whole] for whole, d, c in zip((long, short), done, chunk, strict=True)]
        together = [torch.cat(x) for x in zip(*parts, strict=True)]
        lengths = [d + c for d, c in zip(done, chunk, strict=True)]
        output = layer.step(*together, tables, lengths, chunk)
        for rows, part in zip(got, output.split(chunk), strict=True):
            rows.append(part)
    for rows, whole in zip(got, (long, short), strict=True):
        torch.testing.assert_close(torch.cat(rows), dense(*whole, policy, **options))


def test_blocks_of_a_shared_prefix_serve_both(card):
    layer, prefix = stand_in.Layer(card), drawn(32)
    layer.step(*prefix, [[4, 2]], [32], [32])
    ends = [drawn(5, seed) for seed in (1, 2)]
    together = [torch.cat(x) for x in zip(*ends, strict=True)]
    output = layer.step(*together, [[4, 2, 6], [4, 2, 8]], [37, 37], [5, 5])
    for rows, end in zip(output.split(5), ends, strict=True):
        whole = [torch.cat(pair) for pair in zip(prefix, end, strict=True)]
        torch.testing.assert_close(rows, dense(*whole, PER_LAYER.for_layer(0))[32:])


def test_a_trial_run_without_metadata_makes_ready_and_attends_to_nothing(card):
    layer = stand_in.Layer(card)
    output = layer.attend(layer, torch.randn(3, 4, 8), layer.cache, None, torch.full((3, 4, 8), torch.nan))
    assert torch.equal(output, torch.zeros_like(output))


@pytest.mark.gpu
def test_on_a_gpu_a_cuda_graph_of_single_tokens_serves_other_lengths_and_tables(card):
    def sent(*arrays):
        return [torch.cat([x] * 4, dim=-1).cuda() for x in arrays]  # heads of 32

    layer, whole = stand_in.Layer(card, width=32), [sent(*drawn(60, seed)) for seed in (0, 1)]
    layer.cache = layer.cache.cuda()
    tables = [[7, 3, 5, 2], [1, 9, 4, 8]]
    layer.step(*map(torch.cat, zip(*whole, strict=True)), tables, [60, 60], [60, 60])
    batch = stand_in.metadata(tables, [60, 60], [1, 1], "cuda", max_seq_len=64)
    query = torch.stack([q[-1] for q, _, _ in whole])
    output = torch.full_like(query, torch.nan)
    layer.attend(layer, query, layer.cache, batch, output)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer.attend(layer, query, layer.cache, batch, output)
    for lengths, order in (((60, 60), (0, 1)), ((33, 7), (1, 0)), ((1, 50), (0, 1))):
        batch.seq_lens.copy_(torch.tensor(lengths))
        batch.block_table.copy_(torch.tensor([tables[i] for i in order]))
        query.copy_(torch.stack([whole[i][0][n - 1] for n, i in zip(lengths, order, strict=True)]))
        graph.replay()
        for got, n, i in zip(output, lengths, order, strict=True):
            expected = dense(*(x[:n] for x in whole[i]), PER_LAYER.for_layer(0))[-1]
            torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attn_type": "encoder"}, "encoder"),
        ({"alibi_slopes": torch.ones(4)}, "ALiBi"),
        ({"chunk_lookback": 1}, "chunks that look back"),
    ],
)
def test_what_a_layer_says_of_itself_is_refused_when_it_is_made(card, changes, words):
    with pytest.raises(NotImplementedError, match=words):
        stand_in.Layer(card, **changes)


def test_a_card_that_changed_since_is_refused(card):
    card.write_text("not JSON")
    with pytest.raises(ValueError, match="not a usable policy card"):
        stand_in.Layer(card)
