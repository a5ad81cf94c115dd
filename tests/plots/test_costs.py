"""The figures of the metric against time and memory."""

import dataclasses
import itertools
import re
from importlib import resources

import pandas as pd
from synthetic_results import trial, write_results

from whichlayers.plots.chart_data import chart_of
from whichlayers.plots.costs import _setting_labels, costs, draw_costs
from whichlayers.plots.extra_figures import extra_figures
from whichlayers.plots.facets import fix_layout
from whichlayers.plots.figures import draw
from whichlayers.plots.point_labels import place_labels
from whichlayers.plots.style import LIGHT, MARKERS
from whichlayers.report.tables import summary_grid
from whichlayers.results.frames import finished, load_points
from whichlayers.trial import Adapter, Point, Training


def frozen_points() -> list[Point]:
    points = []
    for seed in range(3):
        base = trial(seed=seed)
        points.append(Point("freeze", "all pretrained", 0.0, base))
        for k in range(3):
            training = Training(lr_factors=tuple((layer, 0.0) for layer in range(k + 1)))
            points.append(Point("freeze", "top", float(k), dataclasses.replace(base, training=training)))
        adapter = Adapter("lora", (1,), ("query",))
        points.append(Point("adapt_layers", "single", 1.0, dataclasses.replace(base, adapter=adapter)))
    return points


def with_costs(tmp_path) -> pd.DataFrame:
    folder = write_results(tmp_path, frozen_points(), lambda point: 0.8 - 0.01 * point.x)
    points = finished(load_points(folder))
    assert points["memory"].isna().all()  # as in files of older versions
    return points.assign(seconds=10.0 - points["x"] + 0.1 * points["seed"], memory=2e9 - 1e8 * points["x"])


def test_settings_are_placed_at_their_mean_cost(tmp_path):
    rows = with_costs(tmp_path).query("experiment == 'freeze'")
    found = costs(rows, "seconds")
    by_setting = found.groupby(["condition", "setting_x"])["x"].unique()
    assert [list(x) for x in by_setting["top"]] == [[10.1], [9.1], [8.1]]
    assert costs(rows, "memory").groupby("setting_x")["x"].first().round(6).to_dict() == {
        0: 2.0,
        1: 1.9,
        2: 1.8,
    }
    assert costs(rows.assign(memory=float("nan")), "memory").empty


def test_the_page_and_its_table_name_the_baseline_like_the_files(tmp_path):
    points = with_costs(tmp_path)
    (panel,) = draw(points, "freeze").panels
    assert [mark.name for mark in panel.marks if mark.kind == "level"] == ["all parameters trained"]
    assert summary_grid(points, "freeze").columns[0] == "all parameters trained"


def test_a_marker_for_each_setting(tmp_path):
    rows = with_costs(tmp_path).query("experiment == 'freeze'")
    with LIGHT.applied():
        figure = draw_costs(rows, "freeze", "memory", LIGHT)
    (panel,) = figure.panels
    marks = {mark.name: mark for mark in panel.marks}
    assert list(marks) == ["layers above k trained", "all parameters trained"]  # on top where k = 0
    assert marks["layers above k trained"].table["x"].round(6).tolist() == [1.8, 1.9, 2.0]
    assert marks["layers above k trained"].style["linestyle"] == ""
    assert {text.get_text() for text in panel.axes.texts} >= {"0", "1", "2"}
    (main,) = [mark for mark in draw(rows, "freeze").panels[0].marks if mark.kind == "line"]
    for key in ("color", "marker"):
        assert marks["layers above k trained"].style[key] == main.style[key]
    assert panel.axes.get_xlabel() == "GB of memory per trial"


def test_the_chart_of_the_page_has_the_labels_and_positions_of_the_file(tmp_path):
    rows = with_costs(tmp_path).query("experiment == 'freeze'")
    with LIGHT.applied():
        figure = draw_costs(rows, "freeze", "memory", LIGHT)
    chart = chart_of(figure, "freeze_memory", "", "")
    low, high = chart["panels"][0]["xlim"]
    for mark in chart["marks"]:
        at = {row[0] for row in mark["rows"]}
        assert len(mark["trials"]) == 3 * len(at)
        assert {x + mark["offsets"][seed] for x, seed, _ in mark["trials"]} == at
        assert all(low < x < high for x in at)
    assert [(mark["marker"], mark["labels"]) for mark in chart["marks"]] == [
        ("o", ["2", "1", "0"]),
        ("*", []),
    ]
    same = costs(rows.assign(memory=2e9 - 1e8 * rows["x"].clip(upper=1)), "memory").query(
        "condition == 'top'"
    )
    assert sorted(_setting_labels(same).values()) == ["0", "1, 2"]


def test_labels_of_points_that_are_close_do_not_overlap(tmp_path):
    """Three settings within two points (1/72 inch) of each other; every label is readable in the drawn figure."""
    rows = with_costs(tmp_path).query("experiment == 'freeze'")
    close = rows.assign(memory=2e9 - 1e6 * rows["x"], value=0.8 + 0.001 * rows["seed"])
    base = close["condition"] == "all pretrained"
    with LIGHT.applied():
        figure = fix_layout(
            draw_costs(close.assign(memory=close["memory"].where(~base, 3e9)), "freeze", "memory", LIGHT)
        )
        figure.canvas.draw()
        texts = [text for text in figure.panels[0].axes.texts if text.get_text() in ("0", "1", "2")]
        boxes = [text.get_window_extent() for text in texts]
    assert len(boxes) == 3
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    assert len({text.get_color() for text in texts}) == 1
    assert texts[0].get_color() == LIGHT.conditions[0]


def test_each_label_gets_the_first_free_place():
    upper_right = (4.0, 3.0)
    assert place_labels([(0, 0), (100, 0)], ["1", "2"]) == [upper_right, upper_right]
    same = place_labels([(0, 0)] * 6, list("123456"))
    assert len(set(same)) == 6
    assert same[0] == upper_right
    assert place_labels([(0, 0), (6.0, 5.0)], ["1", ""])[0] != upper_right  # the other point is there
    assert place_labels([(0, 0)] * 30, ["1"] * 30)[-1] == upper_right  # no place is left


def test_the_page_can_draw_every_marker():
    script = (resources.files("whichlayers.report") / "web" / "drawing.js").read_text(encoding="utf-8")
    shapes = script.partition("const shapes = {")[2].partition("};")[0]
    drawn = set(re.findall(r'^ +"?(\S)"?: \(\) =>', shapes, re.MULTILINE))
    assert drawn >= {*MARKERS, "*"}


def test_figures_exist_where_settings_have_different_costs(tmp_path):
    points = with_costs(tmp_path)
    keys = {figure.key for figure in extra_figures(points)}
    assert {"freeze_time", "freeze_memory"} <= keys
    assert not {"adapt_layers_time", "adapt_layers_memory"} & keys  # a single setting
    assert not {"freeze_memory"} & {f.key for f in extra_figures(points.assign(memory=float("nan")))}


def test_colors_that_are_used_again_have_another_marker():
    styles = {(LIGHT.conditions[i % len(LIGHT.conditions)], MARKERS[i % len(MARKERS)]) for i in range(24)}
    assert len(styles) == 24
