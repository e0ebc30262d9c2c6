"""What every drop-in refuses when it is made."""

import pytest

from sharpmax import PAPER


def refuse_what_cannot_be_used(made):
    with pytest.raises(TypeError, match="policy must be a sharpmax policy"):
        made("PAPER")
    for name in ("return_stats", "mask", "windows"):
        with pytest.raises(TypeError, match=f"takes no option '{name}', only "):
            made(PAPER, **{name: True})
    made(PAPER, window=3, implementation="xla")
