"""Certify a model: for every head the proved spread of its logits, the measured one, and the sizes that follow."""

import numpy as np
import torch

from sharpmax.core.policies import Constant, Policy
from sharpmax.diagnose.certificates import Certificate, largest_inverse_temperature
from sharpmax.hf.diagnose import checked_lengths, layer_names, must_read_text
from sharpmax.hf.load import LoadedModel
from sharpmax.hf.probe import RowProbe
from sharpmax.hf.projections import proved_spreads
from sharpmax.hf.sharpen import sharpen

PLAIN = Constant(1.0)


def certify(
    loaded: LoadedModel, text: str | None = None, *, length: int = 512, policy: Policy = PLAIN
) -> list[Certificate]:
    """Return a certificate for every head; with a text, also the largest spread of all its rows.

    Raises:
        NotImplementedError: a family whose norm layers are not known, or a text for a model that reads none.
        ValueError: a policy that may sharpen without bound, so that nothing can be proved.
    """
    proved = proved_spreads(loaded.model)
    measured = None if text is None else widest_rows(loaded, text, length)
    certificates = []
    for layer, row in enumerate(proved):
        beta = largest_inverse_temperature(policy.for_layer(layer))
        if beta is None:
            raise ValueError(f"{type(policy).__name__} may sharpen without bound as n grows: it gets no certificate")
        for head, spread in enumerate(row[~np.isnan(row)]):
            seen = None if measured is None or np.isnan(measured[layer, head]) else float(measured[layer, head])
            certificates.append(Certificate(layer, head, float(spread), seen, beta))
    return certificates


@torch.no_grad()
def widest_rows(loaded: LoadedModel, text: str, length: int) -> np.ndarray:
    """Return the largest spread of every row of a text of `length` tokens, (layer, head)."""
    must_read_text(loaded)
    checked_lengths(loaded, [length])
    ids = loaded.tokens(text)[:, :length]
    probe = RowProbe(torch.arange, lambda _: length)
    with sharpen(loaded.model, probe=probe):
        loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids))
    return probe.dispersion(layer_names(loaded)).most_spread
