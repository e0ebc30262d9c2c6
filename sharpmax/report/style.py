"""The house style of every figure, and how a figure becomes files: the same data gives the same bytes.

A saved SVG carries a rule for dark surroundings, so one file serves a light page and a dark one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from sharpmax.extras import extra
from sharpmax.files import atomic

with extra("report"):
    import matplotlib
    from cycler import cycler
    from matplotlib.figure import Figure

INK, INK_ON_DARK = "#1f2328", "#e6e9ed"
GRID, GRID_ON_DARK = "#d8dee4", "#2d343c"
# Okabe and Ito's colours, told apart by colour-blind eyes, in tones that stand on white and on near-black.
# Each has at least 3:1 against both.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a17500", "#1b93a8", "#8a6fdf")
GREY = "#737d88"
COLOURS = {
    "softmax": GREY,
    "entropy_target": "#0072b2",
    "paper": "#d55e00",
    "log_n": "#009e73",
    "fitted": "#cc79a7",
    "refit": "#a17500",
    "constant": "#1b93a8",
    "ssmax": "#8a6fdf",
    "lora": "#a17500",
    "hard": INK,
}
"""The colour of each rule, in every figure."""

_RULES: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "figure.facecolor": "none",
    "figure.figsize": (5.6, 3.6),
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "savefig.facecolor": "none",
    "svg.fonttype": "path",
    "svg.hashsalt": "sharpmax",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}

_DARK_RULE = (
    "<style>@media (prefers-color-scheme: dark) {"
    + "".join(
        f'[style*="{part}: {light}"] {{ {part}: {dark} !important }} '
        for part in ("fill", "stroke")
        for light, dark in ((INK, INK_ON_DARK), (GRID, GRID_ON_DARK))
    )
    + "}</style>"
)


@contextmanager
def house_style() -> Iterator[None]:
    """Draw inside this block and nowhere else: matplotlib's settings are as they were afterwards.

    >>> with house_style():     # doctest: +SKIP
    ...     figure = Figure()
    ...     figure.subplots().plot([1, 2, 4])
    ...     save_figure(figure, "runs/mine/seed0/figures", "doubling")
    """
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RULES)
        yield


def save_figure(figure: Figure, folder: str | Path, name: str) -> Path:
    """Write `folder/name.svg` and, on white for where SVG is not shown, `folder/name.png`. Returns the SVG's path."""
    svg, png = Path(folder) / f"{name}.svg", Path(folder) / f"{name}.png"
    drawn = BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    head, opening, rest = drawn.getvalue().decode().partition("<svg ")
    tag, closing, body = rest.partition(">")
    atomic.write_text(svg, f"{head}{opening}{tag}{closing}{_DARK_RULE}{body}")
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=200, facecolor="white", metadata={"Software": None})
    atomic.write_bytes(png, drawn.getvalue())
    return svg
