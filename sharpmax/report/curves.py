"""Curves of a measured quantity against size, with the range over repeats: the figure that most claims need.

As scikit-learn's Displays: it holds what was measured, and draws it on any axes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax.extras import extra
from sharpmax.report.style import house_style, save_figure

with extra("report"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter


MOST_ON_LINES = 4  # curves that carry their names at their ends; more have a legend
OF_LINE = "name of a line"
LABEL_HEIGHT = 0.07  # of a name at the end of a curve, as a share of the axes
PLAIN = 2**14  # the largest size up to which ticks are plain numbers, not powers of two
GROUPED = 1000  # from this size on, ticks of a linear axis have a comma at the thousands


@dataclass(frozen=True)
class Curve:
    """One labelled line; `low` and `high`, if given, are shaded around it.

    Attributes:
        x, y, low, high: numbers, all of one length; a value that does not exist is None or NaN.
        color: a colour, or `C0`, `C1`, … of the house palette; None takes the next one.
        line: a matplotlib line style; the empty string draws the shade, or the markers, alone.
        marker: a matplotlib marker to put at each value; none if empty.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    color: str | None = None
    line: str = "-"
    marker: str = ""

    @classmethod
    def over(
        cls,
        label: str,
        x: Sequence[float],
        repeats: Sequence[Sequence[float]],
        color: str | None = None,
        line: str = "-",
    ) -> "Curve":
        """Return the mean of the repeats at each x, and their range; a repeat that is NaN is left out."""
        y, low, high = ([float(of(values)) for values in repeats] for of in (np.nanmean, np.nanmin, np.nanmax))
        return cls(label, x, y, low, high, color, line)


@dataclass(frozen=True)
class Mark:
    """A thin line across the axes at one value, with its name: a threshold, a training size."""

    label: str
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True)
class CurvesDisplay:
    """Curves on one pair of axes.

    >>> display = CurvesDisplay([Curve("1/n", [1, 2, 4], [1, 0.5, 0.25])], "items n", "weight", y_scale="log")
    >>> display.save("runs/mine/seed0/figures", "decay")     # doctest: +SKIP
    """

    curves: Sequence[Curve]
    x_label: str
    y_label: str
    title: str = ""
    marks: Sequence[Mark] = ()
    x_scale: str = "log2"
    y_scale: str = "linear"
    y_limits: tuple[float, float] | None = None

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw on `ax`, or on new axes, and return them."""
        if ax is None:
            ax = Figure().subplots()
        for axis, scale in (("x", self.x_scale), ("y", self.y_scale)):  # first: margins are of the axis as scaled
            base = {"base": 2} if scale == "log2" else {}
            getattr(ax, f"set_{axis}scale")("log" if base else scale, **base)
            if scale == "symlog":
                getattr(ax, f"{axis}axis").set_major_formatter("{x:g}")
        largest = max((x for curve in self.curves for x in curve.x), default=0)
        if {"log2": largest <= PLAIN, "linear": largest >= GROUPED}.get(self.x_scale):
            ax.xaxis.set_major_formatter("{x:,.0f}")
        if self.y_scale == "log" and min((y for curve in self.curves for y in curve.y if y), default=0) >= 1:
            ax.yaxis.set_major_formatter("{x:,.0f}")
            ax.yaxis.set_minor_formatter(LogFormatter())  # the usual one writes 20 as 2 × 10¹
        for curve in self.curves:
            self._draw(curve, ax)
        for mark in self.marks:
            self._draw_mark(mark, ax)
        ax.set(xlabel=self.x_label, ylabel=self.y_label, title=self.title)
        if self.y_limits:
            ax.set_ylim(*self.y_limits)
        if len(self.curves) <= MOST_ON_LINES and all(curve.line or curve.marker for curve in self.curves):
            self._label_lines(ax)
        else:
            ax.legend()
        return ax

    def plot_panel(self, ax: Axes) -> None:
        """Draw on one of several axes that share a legend: no names in it."""
        self.plot(ax)
        for name in [text for text in ax.texts if text.get_gid() == OF_LINE]:
            name.remove()
        if (legend := ax.get_legend()) is not None:
            legend.remove()

    def save(self, folder: str | Path, name: str) -> Path:
        """Draw in the house style and write SVG and PNG; returns the SVG's path."""
        with house_style():
            figure = Figure()
            self.plot(figure.subplots())
            return save_figure(figure, folder, name)

    def _draw(self, curve: Curve, ax: Axes) -> None:
        of_line, of_shade = (curve.label, None) if curve.line or curve.marker else (None, curve.label)
        style: dict[str, Any] = {"linestyle": curve.line or "none", "marker": curve.marker or None, "markersize": 4}
        (line,) = ax.plot(curve.x, _numbers(curve.y), color=curve.color, label=of_line, **style)
        if curve.low is not None and curve.high is not None:
            shade = ax.fill_between(curve.x, _numbers(curve.low), _numbers(curve.high), label=of_shade)
            shade.set(color=line.get_color(), alpha=0.18, linewidth=0)

    def _label_lines(self, ax: Axes) -> None:
        """Write each curve's name where the curve ends, one below the other where they would overlap."""
        ends = []
        for curve in self.curves:
            seen = [(x, y) for x, y in zip(curve.x, _numbers(curve.y), strict=True) if math.isfinite(y)]
            if seen:
                ends.append((ax.transLimits.transform(ax.transScale.transform(seen[-1]))[1], curve.label))
        lowest = math.inf
        for height, label in sorted(ends, reverse=True):
            lowest = max(min(height, 1.0, lowest - LABEL_HEIGHT), 0.0)
            ax.text(1.01, lowest, label, transform=ax.transAxes, va="center", fontsize=9, gid=OF_LINE)

    def _draw_mark(self, mark: Mark, ax: Axes) -> None:
        rule: dict[str, Any] = {"linestyle": (0, (1, 2)), "linewidth": 1, "color": "#8c959f"}
        if mark.x is not None:
            ax.axvline(mark.x, **rule)
            ax.text(mark.x, 0.99, f" {mark.label}", transform=ax.get_xaxis_transform(), va="top", fontsize=9)
        if mark.y is not None:
            ax.axhline(mark.y, **rule)
            ax.text(0.01, mark.y, mark.label, transform=ax.get_yaxis_transform(), va="bottom", fontsize=9)


@dataclass(frozen=True)
class PanelsDisplay:
    """Displays in rows of three, with the first one's legend for all."""

    panels: Sequence[CurvesDisplay]

    def save(self, folder: str | Path, name: str) -> Path:
        """Draw in the house style and write SVG and PNG; returns the SVG's path."""
        with house_style():
            columns, rows = min(3, len(self.panels)), -(-len(self.panels) // 3)
            figure = Figure(figsize=(3.4 * columns, 2.5 * rows + 0.5))
            grid = figure.subplots(rows, columns, squeeze=False).flatten()
            for ax, display in zip(grid, self.panels, strict=False):
                display.plot_panel(ax)
            for ax in grid[len(self.panels) :]:
                ax.remove()
            figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
            return save_figure(figure, folder, name)


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else float(value) for value in values]
