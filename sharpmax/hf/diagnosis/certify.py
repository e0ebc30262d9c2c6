"""Certify a model: for every head the proved spread of its logits, the measured one, and the sizes that follow."""

import numpy as np
import torch

from sharpmax.core.policies import Constant, Policy
from sharpmax.dispersion.certificates import WEIGHTS, Certificate, largest_inverse_temperature
from sharpmax.dispersion.forecast import Rehearsal, exponents, rehearse
from sharpmax.hf.diagnosis.heads import checked_lengths, diagnose_text, layer_names, must_read_text
from sharpmax.hf.diagnosis.probe import RowProbe
from sharpmax.hf.diagnosis.projections import proved_spreads
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.sharpen.layers import attention_layers
from sharpmax.hf.sharpen.switch import check_layers, sharpen
from sharpmax.torch.per_head import heads_of

PLAIN = Constant(1.0)
ROUNDING = 0.01  # the share by which a measured spread in low precision may pass the proved one
SHORTEST = 16  # tokens of the shortest length that an expectation is fitted at


def certify(
    loaded: LoadedModel, text: str | None = None, *, length: int = 512, policy: Policy = PLAIN
) -> list[Certificate]:
    """Return a certificate for every head; with a text, also the largest spread of all its rows under the policy.

    Raises:
        NotImplementedError: a family whose norm layers are not known, a text for a model that reads none, or a model
            whose logits its weights alone do not explain.
        ValueError: a policy of other layers or heads, or one that may sharpen without bound: nothing can be proved.
    """
    check_layers(policy, attention_layers(loaded.model))
    proved = [row[~np.isnan(row)] for row in proved_spreads(loaded.model)]
    betas = [_largest_beta(policy.for_layer(layer), layer, len(row)) for layer, row in enumerate(proved)]
    measured = None if text is None else widest_rows(loaded, text, length, policy)
    certificates = []
    for layer, (row, beta) in enumerate(zip(proved, betas, strict=True)):
        for head, spread in enumerate(row):
            seen = None if measured is None or np.isnan(measured[layer, head]) else float(measured[layer, head])
            if seen is not None and seen > spread * (1 + ROUNDING):
                raise NotImplementedError(
                    f"no certificate for {loaded.name}: logits of layer {layer}, head {head} spread {seen:.3g}, and "
                    f"its weights allow {spread:.3g}; something else makes them too, such as a learned prefix or a hook"
                )
            certificates.append(Certificate(layer, head, float(spread), seen, beta))
    return certificates


def _largest_beta(policy: Policy, layer: int, heads: int) -> float:
    held = heads_of(policy) or 1
    if held not in (1, heads):
        raise ValueError(f"the policy of layer {layer} holds {held} heads, and this layer has {heads}")
    beta = largest_inverse_temperature(policy)
    if beta is None:
        raise ValueError(f"{type(policy).__name__} may sharpen without bound as n grows: it gets no certificate")
    return beta


@torch.no_grad()
def widest_rows(loaded: LoadedModel, text: str, length: int, policy: Policy = PLAIN) -> np.ndarray:
    """Return the largest spread of every row of a text of `length` tokens, (layer, head), before the policy's beta.

    The policy is on all the same: it changes what later layers read.
    """
    must_read_text(loaded)
    checked_lengths(loaded, [length])
    ids = loaded.tokens(text)[:, :length]
    probe = RowProbe(torch.arange, lambda _: length)
    with sharpen(loaded.model, policy, probe=probe):
        loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids))
    return probe.dispersion(layer_names(loaded)).most_spread


def expected_sizes(
    loaded: LoadedModel, text: str, length: int
) -> tuple[dict[str, np.ndarray] | None, Rehearsal | None]:
    """Return for each weight the size at which a head is expected to give one token no more, (layer, head).

    No proof: each head's rows of this text, grown by the law of its own crowd (`dispersion.crowd`), fitted at 1/16 to
    all of the length. inf where it is never reached, NaN for a head that text passes by. None where the law
    fails its rehearsal, which is returned too: then heads are expected to stay as they are. A text below 256 tokens
    leaves nothing to rehearse.
    """
    lengths = [n for n in (length // 16, length // 8, length // 4, length // 2) if n >= SHORTEST]
    found = diagnose_text(loaded, text, [*lengths, length])
    made = rehearse(found)
    if made is None or not made.believed:
        return None, made
    assert found.observed is not None
    kappa, rows = exponents(found, len(found.lengths)), found.observed[length]
    return {f"{weight:g}": length * rows.times_until(weight, kappa) for weight in WEIGHTS}, made
