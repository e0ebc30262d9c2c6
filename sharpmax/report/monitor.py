"""Write the page of a watched run: heads × steps maps of the largest logit and the entropy, and what moved first.

One file that works offline. While a run goes on it is written again and again, and the page reloads itself.
"""

from pathlib import Path
from typing import Any

import numpy as np

from sharpmax.files import atomic
from sharpmax.report.page import Table
from sharpmax.report.templates import render
from sharpmax.runs.watched import movers
from sharpmax.runs.watched.movers import first_moves, losses, places, series
from sharpmax.runs.watched.record import Recorded

PAGE = "monitor.html"
COLUMNS = 500  # columns of a map; readings beyond are gathered
LISTED = 12  # rows of a table


def write_monitor_page(file: Path, recorded: Recorded, *, title: str, reload_after: float | None = None) -> Path:
    """Write the page of a record; one that reloads itself after so many seconds, if they are given."""
    data = _data(recorded)
    page = render(
        "monitor.html.jinja", title=title, verdict=verdict(recorded), tables=_tables(recorded), data=data,
        reload_after=reload_after,
    )  # fmt: skip
    atomic.write_text(file, page)
    return file


def verdict(recorded: Recorded) -> list[str]:
    """Return what the record shows, a sentence each."""
    if not recorded.steps:
        return ["Nothing is recorded yet."]
    steps = [step["step"] for step in recorded.steps]
    maximum = series(recorded, "maximum", missing=-np.inf)
    place, at = np.unravel_index(int(np.argmax(maximum)), maximum.shape)
    layer, head = places(recorded)[place]
    heads = f"{len(maximum)} head{'s' * (len(maximum) > 1)}"
    largest = f"The largest logit is {maximum[place, at]:.4g}: layer {layer}, head {head}, at step {steps[at]}."
    if not np.isfinite(maximum[place, at]):
        largest = "No row was counted: the model did not train, or every row holds a NaN or an infinity."
    readings = f"{len(steps)} readings" if len(steps) > 1 else "1 reading"
    said = [f"{readings} of {heads}, from step {steps[0]} to step {steps[-1]}.", largest]
    moves = first_moves(recorded)
    said.append(f"Moved first: {moves[0]}." if moves else "No head has moved far from where it began.")
    large = movers.first_above(recorded)
    if large is not None:
        said.append(f"Above {movers.LARGE:g} first: layer {large.layer}, head {large.head}, at step {large.step}.")
    loss = losses(recorded)
    if loss is not None:
        rise = movers.loss_rise(steps, loss)
        if rise is not None:
            before = (
                f", {rise - moves[0].step} steps after the first head moved" if moves and moves[0].step < rise else ""
            )
            said.append(f"The loss rose at step {rise}{before}: {movers.loss_path(steps, loss)}.")
        else:
            last = int(np.flatnonzero(~np.isnan(loss))[-1])
            when = "" if last == len(loss) - 1 else f" at step {steps[last]}, the last that has one"
            said.append(f"The loss has not risen; it is {loss[last]:.4g}{when}.")
    acted = movers.clips(recorded)
    if acted:
        times = sum(one["times"] for one in acted)
        said.append(f"A clip acted {times} time{'s' * (times > 1)}, on {len(acted)} head{'s' * (len(acted) > 1)}.")
    return said


def _tables(recorded: Recorded) -> list[Table]:
    tables: list[Table] = []
    rows: list[list[str | int | float]]
    moves = first_moves(recorded)
    if moves:
        rows = [[m.step, f"layer {m.layer}, head {m.head}", m.what, f"{m.before:.3g}", f"{m.after:.3g}"] for m in moves]
        header = ["step", "head", "what moved", "from", "to"]
        tables.append(Table(header, rows[:LISTED], f"Heads that moved first ({len(rows)} in all)"))
    acted = movers.clips(recorded)
    if acted:
        rows = [
            [f"layer {c['layer']}, head {c['head']}", c["times"], c["first"], c["last"], f"{c['smallest']:.3g}"]
            for c in acted
        ]
        header = ["head", "times", "first step", "last step", "smallest factor"]
        tables.append(Table(header, rows[:LISTED], f"Where the clip acted ({len(rows)} heads)"))
    warned = [(step["step"], each) for step in recorded.steps for each in step.get("warned", ())]
    if warned:
        rows = [[step, f"layer {w['layer']}, head {w['head']}", w["kind"], f"{w['value']:.3g}"] for step, w in warned]
        tables.append(Table(["step", "head", "fault", "value"], rows[:LISTED], f"What the guard found ({len(rows)})"))
    return tables


def _data(recorded: Recorded) -> dict[str, Any]:
    """Return what the page draws, in at most `COLUMNS` columns: the highest logit, and the mean of the rest."""
    steps = np.array([step["step"] for step in recorded.steps], int)
    parts = np.array_split(np.arange(len(steps)), min(len(steps), COLUMNS)) if len(steps) else []

    def gathered(name: str, together: Any, **missing: float) -> list[list[float | None]]:
        values = series(recorded, name, **missing) if len(steps) else np.zeros((0, 0))
        columns = [together(values[:, part]) for part in parts]
        return [[_number(column[row]) for column in columns] for row in range(len(values))]

    loss = losses(recorded)
    shown_loss = None if loss is None else [_mean_of_known(loss[part]) for part in parts]
    return {
        "steps": [[int(steps[part[0]]), int(steps[part[-1]])] for part in parts],
        "heads": [f"layer {layer}, head {head}" for layer, head in places(recorded)],
        "layers": recorded.about["heads"],
        "names": recorded.about["layers"],
        "maximum": gathered("maximum", lambda x: x.max(axis=1), missing=-np.inf),
        "share": gathered("relative_entropy", lambda x: x.mean(axis=1)),
        "entropy": gathered("entropy", lambda x: x.mean(axis=1)),
        "clipped": gathered("scaled", lambda x: x.min(axis=1), missing=1.0),
        "loss": shown_loss,
        "opened": _opened(recorded),
    }


def _opened(recorded: Recorded) -> int:
    """Return the head that the page opens on: the one that moved first, or the first."""
    moves = first_moves(recorded)
    return places(recorded).index((moves[0].layer, moves[0].head)) if moves else 0


def _mean_of_known(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return _number(float(known.mean())) if len(known) else None


def _number(value: float) -> float | None:
    return float(f"{value:.5g}") if np.isfinite(value) else None
