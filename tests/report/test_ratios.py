"""Ratios as rows of dots: one row a contestant, the same bytes each time."""

from matplotlib.figure import Figure

from sharpmax.report.ratios import RatiosDisplay, Series

DISPLAY = RatiosDisplay(
    {
        "forward": {"theirs": [("short", 1.0)], "ours": [("short", 1.5), ("long", 1.2)]},
        "decode": {"ours": [("long", 3.0)]},
    },
    {"short": Series("C0"), "long": Series("C1", "D")},
    "time / theirs",
    "title",
)


def test_the_same_display_gives_the_same_bytes(tmp_path):
    first, second = (DISPLAY.save(tmp_path / name, "f") for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    assert first.with_suffix(".png").exists()


def test_a_row_a_contestant_with_its_largest_ratio():
    ax = Figure().subplots()
    assert DISPLAY.plot(ax, "forward") is ax
    assert [label.get_text() for label in ax.get_yticklabels()] == ["theirs", "ours"]
    assert [text.get_text() for text in ax.texts] == ["1", "1.5"]
