"""A bias of the position: it is ALiBi's, in every implementation that honours a bias, and refused by the others."""

import pytest
import torch

import sharpmax
from sharpmax import Constant
from sharpmax.hf.calibration.position_bias import N0, key_bias, with_position_bias
from sharpmax.hf.sharpen.site import Run, Site, attend_at
from tests.hf.calibration.questions import TEXT
from tests.hf.tiny import tiny

SLOPES = [torch.tensor([3.0, -2.0, 0.0, 9.0]), torch.tensor([1.0, 4.0, -1.0, 0.5])]


def test_a_row_is_what_a_bias_of_the_distance_makes_it():
    e, slopes = torch.randn(1, 4, 9, 9, dtype=torch.float64), SLOPES[0].double()
    distance = torch.arange(9)[:, None] - torch.arange(9)
    hidden = torch.where(distance < 0, -torch.inf, 0.0)
    alibi = e - slopes[None, :, None, None] / N0 * distance + hidden
    ours = e + key_bias(slopes, torch.empty(1, 4, 9, 2)).double() + hidden
    torch.testing.assert_close(ours.softmax(-1), alibi.softmax(-1))


@torch.no_grad()
@pytest.mark.parametrize("policy", [sharpmax.Constant(1.0), sharpmax.Constant(1.5)])
def test_every_implementation_that_honours_a_bias_says_the_same(loaded, ids, policy):
    with with_position_bias(loaded.model, SLOPES, policy, implementation="eager"):
        dense = loaded.hidden(ids)
    for implementation in ("chunked", None):
        with with_position_bias(loaded.model, SLOPES, policy, implementation=implementation):
            torch.testing.assert_close(loaded.hidden(ids), dense)
    assert not torch.allclose(dense, loaded.hidden(ids))


@torch.no_grad()
def test_what_honours_no_bias_refuses_it(loaded, ids):
    with (
        with_position_bias(loaded.model, SLOPES, implementation="stock"),
        pytest.raises(NotImplementedError, match="bias"),
    ):
        loaded.hidden(ids)
    ends = torch.tensor([0, 20, 48], dtype=torch.int32)
    packed = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 28, "max_length_k": 28}
    with with_position_bias(loaded.model, SLOPES), pytest.raises(ValueError, match="no bias"):
        loaded.model.base_model(input_ids=ids, use_cache=False, **packed)


def test_a_paged_cache_refuses_it():
    """Whatever pages there are: it is refused before one is read."""
    site = Site(Run(key_bias=lambda layer, key: key_bias(SLOPES[layer], key)), 0, (Constant(1.0),), torch.device("cpu"))
    query, key = torch.zeros(1, 4, 3, 8), torch.zeros(1, 2, 3, 8)
    with pytest.raises(NotImplementedError, match="a bias per key is not read from a paged cache"):
        attend_at(site, query, key, key, batch=object(), is_causal=True)


@torch.no_grad()
def test_a_cache_and_padding_on_the_left_change_nothing(loaded, ids):
    """Only differences of positions count, so a key may be counted from the end of whatever is there."""
    with with_position_bias(loaded.model, SLOPES):
        whole = loaded.model(input_ids=ids).logits
        half = loaded.model(input_ids=ids[:, :30], use_cache=True)
        rest = loaded.model(input_ids=ids[:, 30:], past_key_values=half.past_key_values).logits
        padded = torch.cat([torch.zeros(1, 5, dtype=torch.long), ids], dim=1)
        mask = (torch.arange(53) >= 5).long()[None]
        behind = loaded.model(input_ids=padded, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(0)).logits
    torch.testing.assert_close(rest, whole[:, 30:], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(behind[:, 5:], whole, rtol=1e-4, atol=1e-4)


def test_slopes_get_the_gradient_of_differences():
    """Of one slope, beside a central difference; wide, because norms round to float32."""
    model = tiny("llama", max_position_embeddings=512)
    model.model.double()
    ids = model.tokens(TEXT)[:, :24]
    along = torch.randn(1, 24, model.model.config.hidden_size, generator=torch.Generator().manual_seed(0))

    def loss(shift):
        with with_position_bias(model.model, [SLOPES[0].double() + shift, SLOPES[1].double()]):
            return (along * model.hidden(ids)).sum()

    shift = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    loss(shift).backward()
    step = torch.tensor([0.0, 0.0, 0.0, 0.5], dtype=torch.float64)
    with torch.no_grad():
        slope = loss(step) - loss(-step)
    torch.testing.assert_close(shift.grad[3], slope, rtol=0.02, atol=1e-3)


def test_slopes_of_other_layers_are_refused(loaded):
    with pytest.raises(ValueError, match="slopes for 2 layers, got 1"):
        with_position_bias(loaded.model, SLOPES[:1])
