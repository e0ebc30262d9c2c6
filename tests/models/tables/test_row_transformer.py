"""The encoder over rows equals PyTorch's own with a mask, whichever rows come first, and any policy serves it."""

import pytest
import torch

from sharpmax.core.policies import LengthScaled, PerLayer
from sharpmax.models.tables.row_transformer import RowTransformer
from tests.models.tables.small_model import small_model

ROWS, KNOWN = 12, 8


@pytest.fixture
def model():
    return small_model()


@pytest.fixture
def table():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, 5, generator=generator), torch.randint(0, 3, (KNOWN,), generator=generator)


def by_pytorch(model: RowTransformer, rows, known):
    """The same weights in `nn.TransformerEncoderLayer`, where a mask hides asked rows from everyone."""
    of = model.weights
    h = rows @ of["encoder.weight"].T + of["encoder.bias"]
    h[:KNOWN] += known[:, None].float() @ of["y_encoder.weight"].T + of["y_encoder.bias"]
    hidden = torch.zeros(ROWS, ROWS, dtype=torch.bool)
    hidden[:, KNOWN:] = True
    width = h.shape[1]
    for index in range(model.layers):
        layer = torch.nn.TransformerEncoderLayer(width, model.heads, 2 * width, 0.0, "gelu", batch_first=True).eval()
        prefix = f"transformer_encoder.layers.{index}."
        layer.load_state_dict({name.removeprefix(prefix): w for name, w in of.items() if name.startswith(prefix)})
        h = layer(h[None], src_mask=hidden)[0]
    h = torch.nn.functional.gelu(h[KNOWN:] @ of["decoder.0.weight"].T + of["decoder.0.bias"])
    return h @ of["decoder.2.weight"].T + of["decoder.2.bias"]


def test_it_is_an_encoder_whose_mask_hides_asked_rows(model, table):
    with torch.no_grad():
        torch.testing.assert_close(model(*table), by_pytorch(model, *table), atol=2e-5, rtol=1e-5)


def test_the_order_of_known_rows_and_other_asked_rows_do_not_matter(model, table):
    rows, known = table
    order = torch.randperm(KNOWN, generator=torch.Generator().manual_seed(2))
    shuffled = torch.cat([rows[:KNOWN][order], rows[KNOWN:]])
    alone = torch.cat([rows[:KNOWN], rows[-1:]])
    said = model(rows, known)
    torch.testing.assert_close(model(shuffled, known[order]), said, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(alone, known), said[-1:], atol=1e-5, rtol=1e-5)


def test_a_policy_of_each_layer_sees_the_known_rows(model, table):
    said = model(*table)
    at_trained = PerLayer((LengthScaled(1.0, 1.0, KNOWN),) * model.layers)  # 1 at as many rows as there are
    torch.testing.assert_close(model(*table, policy=at_trained), said)
    sharper = model(*table, policy=PerLayer((LengthScaled(1.0, 1.0, KNOWN / 4),) * model.layers))
    assert (sharper - said).abs().max() > 1e-3


def test_an_observer_is_told_what_the_asked_rows_attend_by(model, table):
    seen = {}
    model(*table, observer=lambda layer, query, key: seen.update({layer: (query, key)}))
    assert sorted(seen) == list(range(model.layers))
    for query, key in seen.values():
        assert query.shape[:3] == (1, model.heads, ROWS - KNOWN)
        assert key.shape[:3] == (1, model.heads, KNOWN)


@pytest.mark.parametrize(("rows", "known"), [((ROWS, 4), KNOWN), ((KNOWN, 5), KNOWN), ((ROWS, 5), 0)])
def test_tables_that_do_not_fit_are_refused(model, rows, known):
    with pytest.raises(ValueError, match=r"expected rows \(known \+ asked, 5\) and at least one of each"):
        model(torch.zeros(rows), torch.zeros(known, dtype=torch.long))
