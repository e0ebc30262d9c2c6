"""Measure what an unfitted rule does to each built-in model: the paper's rule in every head, or one beta for all.

Run in the root of a checkout: `python results/unfitted/measure.py` (one CPU core, a minute).
docs/results/models.md reads it.
"""

import json
import math
from pathlib import Path
from statistics import fmean

import torch
from torch.nn.functional import cosine_similarity, cross_entropy

import sharpmax
from sharpmax.hf import load, sharpen
from sharpmax.hf.text_loss import text_losses
from sharpmax.runs.provenance import provenance

POLICIES = {
    "plain": sharpmax.Constant(1.0),
    "PAPER": sharpmax.PAPER,
    "1.1": sharpmax.Constant(1.1),
    "0.9": sharpmax.Constant(0.9),
}
REACTIONS = "CC(=O)Cl.OCC>>CCOC(C)=O.Brc1ccccc1.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1." * 12
CHAIN = "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCA"
PAIRS = [
    ("The cat sleeps on the sofa.", "A cat is asleep on the couch."),
    ("He drove to work this morning.", "This morning he went to work by car."),
    ("The film was far too long.", "That movie lasted much too long."),
    ("Prices rose sharply last year.", "Last year there was a steep increase in prices."),
]


def masked_loss(loaded, text, length=None):
    """Return the mean loss of each token between the markers, masked in turn."""
    ids = loaded.tokens(text)[:, :length]
    at = torch.arange(1, ids.shape[1] - 1)
    batch = ids.repeat(len(at), 1)
    batch[torch.arange(len(at)), at] = loaded.tokenizer.mask_token_id
    logits = loaded.model(batch, attention_mask=torch.ones_like(batch)).logits[torch.arange(len(at)), at]
    return cross_entropy(logits, ids[0, at]).item()


def next_loss(loaded, text, after):
    """Return the mean loss of each token, given those before it, from the one numbered `after` on."""
    ids = loaded.tokens(text)
    logits = loaded.model(ids).logits[0, after - 1 : -1]
    return cross_entropy(logits, ids[0, after:]).item()


def cosine(loaded, one, other):
    """Return the cosine of two sentences' mean last hidden states."""
    vectors = [loaded.model(loaded.tokens(text)).last_hidden_state.mean(dim=1) for text in (one, other)]
    return cosine_similarity(*vectors).item()


def alike(loaded):
    """Return the mean cosine of the pairs that mean the same."""
    return fmean(cosine(loaded, one, other) for one, other in PAIRS)


def apart(loaded):
    """Return the mean cosine of each sentence with the second of the next pair."""
    return fmean(cosine(loaded, PAIRS[i][0], PAIRS[(i + 1) % len(PAIRS)][1]) for i in range(len(PAIRS)))


def perplexity(loaded):
    """Return the perplexity of the Apache licence in windows of 512 tokens."""
    return math.exp(fmean(text_losses(loaded, Path("LICENSE").read_text(), window=512)))


SCORES = {
    ("smollm2", "perplexity of the Apache-2.0 text in windows of 512 tokens"): perplexity,
    ("rxnmapper", "loss of a masked token, two reactions repeated, 64 tokens"): lambda m: masked_loss(m, REACTIONS, 64),
    ("antiberty", "loss of a masked residue, one heavy chain"): lambda m: masked_loss(m, CHAIN),
    ("iglm", "loss of the next residue, the same chain behind its tags"): lambda m: next_loss(
        m, "[HEAVY][HUMAN]" + CHAIN, 3
    ),
    ("minilm", "cosine of four pairs that mean the same"): alike,
    ("minilm", "cosine of four pairs that do not"): apart,
}

if __name__ == "__main__":
    torch.set_grad_enabled(False)
    rows = []
    for (name, score), measure in SCORES.items():
        loaded, values = load(name, accept_license=True), {}
        for label, policy in POLICIES.items():
            with sharpen(loaded.model, policy):
                values[label] = measure(loaded)
        rows.append({"model": name, "score": score, "values": values})
    record = {**provenance(), "command": "python results/unfitted/measure.py", "results": rows}
    Path(__file__).with_name("losses.json").write_text(json.dumps(record, indent=1) + "\n")
