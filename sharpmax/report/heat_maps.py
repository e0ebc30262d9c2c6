"""Matrices of weights side by side, one shade for all: rows of maps under each other, sizes along.

As scikit-learn's Displays: it holds what was measured, and draws it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sharpmax.extras import extra
from sharpmax.report.style import house_style, save_figure

with extra("report"):
    from matplotlib.figure import Figure

Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True)
class HeatMapsDisplay:
    """A grid of maps, values from 0 to 1.

    >>> display = HeatMapsDisplay({"softmax": {"n = 2": [[0.9, 0.1]]}}, "items", "sets", "weight")
    >>> display.save("runs/mine/seed0/figures", "maps")     # doctest: +SKIP

    Attributes:
        maps: row label -> column label -> matrix; every row has the same columns.
        x_ticks, y_ticks: names of a matrix's columns and rows, if they have any.
    """

    maps: Mapping[str, Mapping[str, Matrix]]
    x_label: str
    y_label: str
    value_label: str
    title: str = ""
    x_ticks: Sequence[str] = ()
    y_ticks: Sequence[str] = ()

    def plot(self) -> Figure:
        """Draw on a new figure and return it."""
        columns = len(next(iter(self.maps.values())))
        height = max(2.3, 0.16 * len(self.y_ticks))
        figure = Figure(figsize=(max(6.4, 1.1 * columns + 2 * bool(self.y_ticks)), 0.7 + height * len(self.maps)))
        grid = figure.subplots(len(self.maps), columns, squeeze=False, sharex=True, sharey=True)
        for axes, (row, maps) in zip(grid, self.maps.items(), strict=True):
            for ax, (column, matrix) in zip(axes, maps.items(), strict=True):
                image = ax.imshow(matrix, vmin=0.0, vmax=1.0, cmap="viridis", aspect="auto", interpolation="nearest")
                ax.grid(False)
                ax.set_xticks(range(len(self.x_ticks)), self.x_ticks, fontsize=6)
                ax.set_yticks(range(len(self.y_ticks)), self.y_ticks, fontsize=7)
                ax.tick_params(length=0)
                if ax in grid[0]:
                    ax.set_title(column, loc="center", fontsize=9, fontweight="normal")
            axes[0].set_ylabel(row)
        figure.colorbar(image, ax=grid, label=self.value_label, shrink=0.9, pad=0.01)
        figure.supxlabel(self.x_label, fontsize=10)
        figure.supylabel(self.y_label, fontsize=10)
        if self.title:
            figure.suptitle(self.title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        return figure

    def save(self, folder: str | Path, name: str) -> Path:
        """Draw in the house style and write SVG and PNG; returns the SVG's path."""
        with house_style():
            return save_figure(self.plot(), folder, name)
