"""The price of text follows its cost."""

from sharpmax.hf.calibration.descent_state import Price


def test_a_price_forgets_an_early_excess():
    """Costs far above what is allowed count as twice it: once they are mended the price soon turns."""
    price = Price(40.0, allowed=0.004)
    for _ in range(5):
        price.follow(0.09)
    high = price.value
    for _ in range(8):
        price.follow(0.0)
    assert high > 40
    assert price.value < high
    fixed = Price(40.0, None)
    fixed.follow(0.09)
    assert fixed.value == 40
