"""The tiny Llama: it learns something, and the same from the same seed."""

import torch

from sharpmax.hf.models.tiny_llama import train_tiny_llama


def test_it_learns_and_a_seed_gives_the_same_model(monkeypatch):
    monkeypatch.setattr("sharpmax.hf.models.tiny_llama.STEPS", 20)
    text = "a rose is a rose is a rose. " * 40
    loaded, same = (train_tiny_llama(text, seed=3) for _ in range(2))
    pairs = zip(loaded.model.parameters(), same.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    ids = loaded.tokens(text[:64])
    with torch.no_grad():
        assert loaded.model(ids, labels=ids).loss < 3.0  # untrained: 4.6, the logarithm of its vocabulary
