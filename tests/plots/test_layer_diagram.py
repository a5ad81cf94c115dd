"""Layer diagrams: every box has its number and shows whether it is significantly different from zero."""

from __future__ import annotations

import dataclasses

import pytest
from matplotlib.colors import to_rgb
from synthetic_results import incremental, lifelike, localized, write_results

from whichlayers.plots.draw_layers import draw_layers
from whichlayers.plots.layer_diagram import (
    LEGEND_TITLE,
    Box,
    diagram_data,
    diagram_file_names,
    layer_diagrams,
    shade,
    text_color_on,
)
from whichlayers.plots.style import DARK, LIGHT
from whichlayers.results.frames import finished, load_points
from whichlayers.text import format_half_width, format_score


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    study_points = incremental(("SST-2", "CoLA"), (500, 5000), 8) + localized()
    return layer_diagrams(
        finished(load_points(write_results(tmp_path_factory.mktemp("layers"), study_points, lifelike(6))))
    )


def nearer_bound(box):
    """The end of the interval that is nearer to zero; 0 if it contains zero."""
    low, high = box.mean - box.half, box.mean + box.half
    return 0.0 if low <= 0 <= high else min(low, high, key=abs)


def test_the_color_is_that_of_the_bound_nearer_to_zero(found):
    boxes = found[0].boxes
    assert any(nearer_bound(box) == 0 for box in boxes)
    assert any(nearer_bound(box) > 0 for box in boxes)
    for box in boxes:
        assert box.certain == pytest.approx(nearer_bound(box))
        if nearer_bound(box) == 0:
            assert found[0].colors(box, LIGHT)[0] == shade(0.0, LIGHT)
    assert "bound of the interval nearer to zero" in found[0].caption
    assert Box(2, 5, mean=0.3, half=0.1, n=3, significant=True).certain == pytest.approx(0.2 / 4)
    assert Box(2, 2, mean=-0.3, half=0.1, n=3, significant=True).certain == pytest.approx(-0.2)


def test_the_legend_explains_the_colors(found):
    texts = [text.get_text() for text in draw_layers(found[0]).texts]
    most = max(abs(nearer_bound(box)) for box in found[0].boxes)
    assert f"color: {LEGEND_TITLE}" in texts
    column = found[0].columns[0]
    wide = dataclasses.replace(
        column, boxes=(dataclasses.replace(column.boxes[0], last=column.boxes[0].last + 2),)
    )
    diagram = dataclasses.replace(found[0], columns=(wide,))
    assert diagram.legend_title == f"{LEGEND_TITLE} per layer"
    assert diagram_data([diagram])[0]["legendTitle"] == diagram.legend_title
    assert found[0].legend[-1] == (format_score(most, signed=True), 1.0)
    assert {text for text, _ in found[0].legend} <= set(texts)
    assert [text for text, _ in diagram_data(found)[0]["legend"]] == [text for text, _ in found[0].legend]


def test_files_name_the_model_and_the_variant(found):
    """A study may have several diagrams of one kind, which differ in nothing else that is drawn."""
    variant = dataclasses.replace(found[0], variant="as_released")
    first, second = (
        {text.get_text().splitlines()[0] for text in draw_layers(d).texts} for d in (found[0], variant)
    )
    assert found[0].model in first
    assert f"{found[0].model}, as_released" in second


def test_one_column_per_task_and_size_and_one_box_per_layer(found):
    first = found[0]
    assert [(column.task, column.size) for column in first.columns] == [
        ("SST-2", 500),
        ("SST-2", 5000),
        ("CoLA", 500),
        ("CoLA", 5000),
    ]
    assert all([box.first for box in column.boxes] == list(range(1, 7)) for column in first.columns)
    assert list(diagram_file_names(found)) == [
        "layers",
        "layers_block_reinitialized",
        "layers_block_preserved",
    ]
    column = first.columns[0]
    assert sum(box.mean for box in column.boxes) == pytest.approx(
        column.all - column.none
    )  # all trials are paired


def test_the_drawing_has_all_numbers_and_hatches_what_is_not_significant(found):
    for theme in (LIGHT, DARK):
        (axes,) = draw_layers(found[0], theme).axes
        texts = [text.get_text() for text in axes.texts]
        boxes = [box for column in found[0].columns for box in column.boxes]
        for box in boxes:
            assert f"{format_score(box.mean, signed=True)} {format_half_width(box.half)}" in texts
        assert sum(patch.get_hatch() is not None for patch in axes.patches) == sum(
            not box.significant for box in boxes
        )
        assert 0 < sum(box.significant for box in boxes) < len(boxes)


def test_the_data_for_the_page_are_the_same_in_points(found):
    data = diagram_data(found)[0]
    box, box_data = found[0].columns[0].boxes[2], data["columns"][0]["boxes"][2]
    assert box_data == [3, 3, round(100 * box.mean, 3), round(100 * box.half, 3), 8, box.significant]
    most = max(abs(nearer_bound(b)) for s in found[0].columns for b in s.boxes)
    colors = [shade(nearer_bound(box) / most, theme) for theme in (LIGHT, DARK)]
    assert [list(pair) for pair in data["columns"][0]["colors"][2]] == [[c, text_color_on(c)] for c in colors]
    clear = [b for b in found[0].columns[0].boxes if b.significant]
    assert all(f"{b.first} ({format_score(b.mean, signed=True)})" in data["alt"] for b in clear[:4])


def test_shades_keep_their_order_in_grayscale_and_text_is_readable():
    def luminance(color):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for theme, way in ((LIGHT, -1), (DARK, 1)):
        helps = [way * luminance(shade(share / 10, theme)) for share in range(11)]
        assert helps == sorted(helps)
        for share in range(-10, 11):
            color = shade(share / 10, theme)
            light, dark = sorted((luminance(color), luminance(text_color_on(color))), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.4


def test_many_columns_wrap_into_rows_and_one_trial_has_no_interval(tmp_path):
    study_points = incremental([f"task {i}" for i in range(5)], (500, 900, 5000), 1)
    (diagram,) = layer_diagrams(finished(load_points(write_results(tmp_path, study_points, lifelike(6)))))
    figure = draw_layers(diagram)
    assert len(figure.axes) == 2
    assert not any("±" in text.get_text() for axes in figure.axes for text in axes.texts)
    assert not any(patch.get_hatch() for axes in figure.axes for patch in axes.patches)
    assert diagram.legend == []
    assert {diagram.colors(box, LIGHT)[0] for box in diagram.boxes} == {shade(0.0, LIGHT)}
    for word in ("95%", "Hatched", "±", "nearer to zero"):
        assert word not in diagram.caption
    assert "1 paired trial, so there are no intervals" in diagram.caption
