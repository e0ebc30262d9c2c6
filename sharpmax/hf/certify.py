"""Certify a model: for every head the proved spread of its logits, the measured one, and the sizes that follow."""

from collections.abc import Sequence

import numpy as np

from sharpmax.core.policies import Constant, Policy
from sharpmax.diagnose.certificates import Certificate, largest_inverse_temperature
from sharpmax.hf.diagnose import diagnose_text
from sharpmax.hf.load import LoadedModel
from sharpmax.hf.projections import proved_spreads

PLAIN = Constant(1.0)


def certify(
    loaded: LoadedModel, text: str | None = None, *, lengths: Sequence[int] = (512,), policy: Policy = PLAIN
) -> list[Certificate]:
    """Return a certificate for every head; with a text, also the largest spread that any of its rows showed.

    Raises:
        NotImplementedError: a family whose norm layers are not known.
        ValueError: a policy that may sharpen without bound, so that nothing can be proved.
    """
    proved = proved_spreads(loaded.model)
    measured = None if text is None else diagnose_text(loaded, text, lengths, rows=10**9).most_spread
    certificates = []
    for layer, row in enumerate(proved):
        beta = largest_inverse_temperature(policy.for_layer(layer))
        if beta is None:
            raise ValueError(f"{type(policy).__name__} may sharpen without bound as n grows: it gets no certificate")
        for head, spread in enumerate(row):
            seen = None if measured is None or np.isnan(measured[layer, head]) else float(measured[layer, head])
            certificates.append(Certificate(layer, head, float(spread), seen, beta))
    return certificates
