"""Questions about real flights; the files are made of two small ones, and of the package itself."""

import zipfile

import numpy as np
import pytest

from sharpmax.tasks.tables import draw, flights

HEADER = "month,day,sched_dep_time,sched_arr_time,carrier,origin,dest,distance,flight,air_time,arr_delay,time_hour"
LINES = [
    "1,2,515,830,UA,EWR,IAH,1400,1545,227,11,h1",
    "1,3,600,900,AA,JFK,MIA,1089,1141,160,-5,h2",
    "2,4,700,1000,UA,EWR,IAH,1400,1,NA,NA,h1",
]


def test_names_become_numbers_by_frequency_and_weather_joins(tmp_path):
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "\n".join([HEADER, *LINES]))
    (tmp_path / "weather.csv").write_text("origin,time_hour,temp,wind_speed,precip,visib\nEWR,h1,39.5,10,NA,9\n")
    (tmp_path / "PKG-INFO").write_text("License: CC0")
    flights._convert(tmp_path, tmp_path / "made")
    found = np.load(tmp_path / "made" / "flights.npy", allow_pickle=False)
    column = {name: found[:, i].tolist() for i, name in enumerate(flights.COLUMNS)}
    assert column["carrier"] == [0, 1, 0]
    assert column["temp"][::2] == [39.5, 39.5]
    assert np.isnan([column["temp"][1], column["precip"][0], column["arr_delay"][2]]).all()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "classes", "columns"), [("flights-late", 2, 13), ("flights-carrier", 10, 9)])
def test_the_flights_of_2013(name, classes, columns):
    table = draw(name, 3000, seed=0)
    assert table.rows.shape == (3000, columns)
    assert set(table.labels) == set(range(classes))
    np.testing.assert_array_equal(draw(name, 100, seed=0).rows, table.rows[:100])
    with pytest.raises(ValueError, match=r"expected at most 3\d+ flights, got 400000"):
        draw(name, 400_000, seed=0)
