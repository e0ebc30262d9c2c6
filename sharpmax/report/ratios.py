"""Ratios to a reference, one row a contestant: dots on a logarithmic axis, a panel for each thing that was compared.

As scikit-learn's Displays: it holds what was measured, and draws it on any axes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sharpmax.extras import extra
from sharpmax.report.style import house_style, save_figure

with extra("report"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter


@dataclass(frozen=True)
class Series:
    """How one series of dots looks."""

    color: str
    marker: str = "o"


@dataclass(frozen=True)
class RatiosDisplay:
    """Panels of rows of dots; 1 is the reference.

    Attributes:
        panels: by its title, a panel's rows: by its label, a row's (series, ratio) pairs.
        series: how each series looks, in the legend's order.

    >>> rows = {"theirs": [("short", 1.0)], "ours": [("short", 1.5), ("long", 1.2)]}
    >>> display = RatiosDisplay({"forward": rows}, {"short": Series("C0"), "long": Series("C1")}, "time / theirs")
    >>> display.save("runs/mine", "ratios")     # doctest: +SKIP
    """

    panels: Mapping[str, Mapping[str, Sequence[tuple[str, float]]]]
    series: Mapping[str, Series]
    x_label: str
    title: str = ""

    def plot(self, ax: Axes, panel: str) -> Axes:
        """Draw one panel on `ax`, the first row on top, and return it."""
        rows = self.panels[panel]
        ax.axvline(1.0, color="#8c959f", linewidth=1)
        for y, pairs in enumerate(rows.values()):
            for name, ratio in pairs:
                look = self.series[name]
                ax.plot([ratio], [y], look.marker, color=look.color, markersize=5, linestyle="none")
            largest = max(ratio for _, ratio in pairs)
            ax.annotate(f"{largest:.3g}", (largest, y), (7, 0), textcoords="offset points", va="center", fontsize=8)
        ax.set_yticks(range(len(rows)), list(rows))
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.tick_params(axis="y", labelsize=9, length=0)
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_title(panel)
        return ax

    def save(self, folder: str | Path, name: str) -> Path:
        """Draw in the house style and write SVG and PNG; returns the SVG's path."""
        heights = [len(rows) + 1.5 for rows in self.panels.values()]
        with house_style():
            figure = Figure(figsize=(8.0, 1.3 + 0.25 * sum(heights)))
            axes = figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
            for ax, panel in zip(axes, self.panels, strict=True):
                self.plot(ax, panel)
            low, high = axes[0].get_xlim()
            axes[0].set_xlim(low / 1.1, high * 1.4)  # room for the last number
            axes[-1].set_xlabel(self.x_label)
            for label, look in self.series.items():
                axes[0].plot([], [], look.marker, color=look.color, markersize=5, linestyle="none", label=label)
            figure.legend(loc="outside lower center", ncols=2)
            figure.suptitle(self.title, x=0.01, ha="left", fontsize=11)
            return save_figure(figure, folder, name)
