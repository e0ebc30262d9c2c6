import numpy as np
import pytest
import torch

from sharpmax import PAPER
from sharpmax.models.mechanisms import Crowded, Sharpened

SLOPES = torch.tensor([0.0, 0.25]).double()


def tensors(batch=3, keys=6):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, batch, 2, keys, 4, generator=generator).double() for _ in range(3)]


def test_a_crowd_is_as_many_copies_of_every_key_but_the_best():
    """Crowds of 1, 4 and 16 for the three sequences, by really repeating the other keys."""
    q, k, v = tensors()
    found = Crowded(crowd=16.0).learn(q, k, v, SLOPES, {}).numpy()
    for b, copies in enumerate((1, 4, 16)):
        for i in range(6):
            row = (k[0, b, 0, : i + 1] @ q[0, b, 0, i] / 2).numpy()
            best = int(row.argmax())
            places = [best] + [j for j in range(i + 1) if j != best for _ in range(copies)]
            weights = np.exp(row[places] - row.max())
            expected = weights / weights.sum() @ v[0, b, 0].numpy()[places]
            np.testing.assert_allclose(found[0, b, 0, i], expected, rtol=1e-9)


def test_heads_with_a_slope_and_asking_are_not_crowded():
    arguments = (*tensors(), SLOPES, {})
    crowded, plain = Crowded(crowd=64.0), Sharpened()
    torch.testing.assert_close(crowded.learn(*arguments)[:, :, 1], plain.attend(*arguments)[:, :, 1])
    torch.testing.assert_close(crowded.attend(*arguments), plain.attend(*arguments))
    torch.testing.assert_close(crowded.stream(*arguments, torch.float64), plain.attend(*arguments))


def test_its_gradient_is_finite_differences():
    inputs = [t.requires_grad_() for t in tensors(batch=2, keys=4)]
    mechanism = Crowded(PAPER, crowd=8.0)
    assert torch.autograd.gradcheck(lambda q, k, v: mechanism.learn(q, k, v, SLOPES, {}), inputs)


@pytest.mark.parametrize("crowd", [0.5, float("nan"), float("inf")])
def test_a_crowd_below_one_is_refused(crowd):
    with pytest.raises(ValueError, match="expected a crowd of at least 1"):
        Crowded(crowd=crowd)
