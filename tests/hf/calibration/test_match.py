"""Matching: short rows stay as they are, long ones are sharpened."""

import torch

import sharpmax
from sharpmax.hf import sharpen
from sharpmax.hf.calibration.learn import query_heads
from sharpmax.hf.calibration.match import match
from tests.hf.calibration.questions import TEXT


def test_match_leaves_short_rows_alone_and_sharpens_long_ones(loaded):
    policy = match(loaded, TEXT, [16, 32, 64, 128], reference=16, rows=8)
    assert query_heads(loaded.model) == [4, 4]
    seen = {}
    for name, used in (("plain", sharpmax.Constant(1.0)), ("matched", policy)):
        growth = []
        ids = loaded.tokens(TEXT)[:, :256]

        def observe(layer, stats, growth=growth):
            beta, n = stats.inverse_temperature, stats.count
            growth.append((beta[n <= 16].max(), beta[..., -1].mean()))

        with torch.no_grad(), sharpen(loaded.model, used, observer=observe):
            loaded.model(ids)
        seen[name] = growth
    assert all(short == 1 for short, _ in seen["matched"])
    assert max(long for _, long in seen["matched"]) > 1
