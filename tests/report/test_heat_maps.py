"""Maps of weights: a grid with one row a rule, in both formats."""

from sharpmax.report.heat_maps import HeatMapsDisplay

MAPS = {rule: {"n = 2": [[0.9, 0.1]], "n = 4": [[0.4, 0.3]]} for rule in ("softmax", "sharp")}


def test_a_grid_of_maps_and_one_scale():
    figure = HeatMapsDisplay(MAPS, "items", "sets", "weight", "Maps").plot()
    assert len(figure.axes) == 5
    assert {ax.images[0].get_clim() for ax in figure.axes[:4]} == {(0.0, 1.0)}
    assert [ax.get_title() for ax in figure.axes[:2]] == ["n = 2", "n = 4"]


def test_it_is_saved_as_svg_and_png(tmp_path):
    svg = HeatMapsDisplay(MAPS, "items", "sets", "weight").save(tmp_path, "maps")
    assert svg.exists()
    assert (tmp_path / "maps.png").exists()
