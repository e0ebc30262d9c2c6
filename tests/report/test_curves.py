"""Figures: drawn on any axes, saved as the same bytes each time, matplotlib left as it was."""

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from sharpmax.report.curves import LABEL_HEIGHT, Curve, CurvesDisplay, Mark, PanelsDisplay
from sharpmax.report.style import INK, house_style, save_figure

DISPLAY = CurvesDisplay(
    [
        Curve("a", [1, 2, 4], [1, None, 0.25], [0.9, None, 0.2], [1, None, 0.3]),
        Curve("band", [1, 4], [1, 1], [0, 0], [1, 1], line=""),
    ],
    "n",
    "weight",
    "title",
    marks=[Mark("here", x=2), Mark("there", y=0.5)],
    y_scale="log",
)


def test_the_same_display_gives_the_same_bytes(tmp_path):
    first, second = (DISPLAY.save(tmp_path / name, "f") for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    assert first.with_suffix(".png").read_bytes() == second.with_suffix(".png").read_bytes()


def test_the_svg_follows_dark_surroundings(tmp_path):
    svg = DISPLAY.save(tmp_path, "f").read_text()
    assert "prefers-color-scheme: dark" in svg
    assert f"fill: {INK}" in svg.split("</style>", 1)[1]


def test_draws_on_the_axes_it_is_given():
    ax = Figure().subplots()
    assert DISPLAY.plot(ax) is ax
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "band"]
    assert ax.get_title() == "title"
    assert ax.get_lines()[1].get_linestyle() == "None"
    assert DISPLAY.plot() is not ax


def test_up_to_four_lines_carry_their_names_at_their_ends_and_none_hides_another():
    def names(count):
        curves = [Curve(f"line {i}", [1, 2, 4], [1.0, None, 0.5 + 0.001 * i]) for i in range(count)]
        ax = CurvesDisplay([*curves, Curve("nowhere", [1], [None])], "n", "y", y_limits=(0, 1)).plot()
        return ax, {text.get_text(): text.get_position()[1] for text in ax.texts}

    ax, heights = names(3)
    assert ax.get_legend() is None
    assert list(heights) == ["line 2", "line 1", "line 0"]
    assert np.diff(list(heights.values())) == pytest.approx([-LABEL_HEIGHT, -LABEL_HEIGHT])
    assert heights["line 2"] == pytest.approx(0.502)
    ax, heights = names(4)
    assert not heights
    assert len(ax.get_legend().get_texts()) == 5


def test_settings_are_as_they_were_afterwards(tmp_path):
    before = dict(matplotlib.rcParams)
    with pytest.raises(ZeroDivisionError), house_style():
        raise ZeroDivisionError
    with house_style():
        save_figure(Figure(), tmp_path, "empty")
    assert dict(matplotlib.rcParams) == before


def test_panels_share_one_legend(tmp_path):
    svg = PanelsDisplay([DISPLAY] * 4).save(tmp_path, "panels").read_text()
    assert svg.count("<!-- title -->") == 4
    assert svg.count("<!-- band -->") == 1  # the legend's entry, once
    assert (tmp_path / "panels.png").exists()


def test_ticks_are_plain_numbers():
    """Of a logarithmic axis that begins at 1 or above, and with a comma on a linear one."""
    curves = [Curve("perplexity", [1000, 16000], [15.0, 140.0]), Curve("nothing", [], [])]
    ax = CurvesDisplay(curves, "position", "perplexity", x_scale="linear", y_scale="log").plot()
    ax.figure.draw_without_rendering()
    across, major, minor = (
        [label.get_text() for label in labels if label.get_text()]
        for labels in (ax.get_xticklabels(), ax.get_yticklabels(), ax.get_yticklabels(minor=True))
    )
    assert "10,000" in across
    assert "100" in major
    assert "20" in minor
