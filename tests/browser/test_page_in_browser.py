"""The page in a real browser: hover, controls, sorting, downloads, dark mode, phone, print, odd names.

Requires Chromium on the PATH (e.g. the Debian package) and the playwright package; skipped if either is missing.
"""

from __future__ import annotations

import csv
import io
from importlib import resources
from pathlib import Path

import pytest
from browser_pages import chart, opening
from synthetic_results import incremental, lifelike, localized, permutation, single_layer, write_results

MARKUP = "<script>window.hacked = 1</script></script><img src=x onerror='window.hacked=2'>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from whichlayers.report.build import page

    study_points = incremental(("SST-2", "CoLA"), (500, 5000), 4, recipes=("as_described", "as_released"))
    study_points += localized(("SST-2", "CoLA")) + permutation(permutations=5, trials=2) + single_layer()
    folder = write_results(tmp_path_factory.mktemp("page"), study_points, lifelike(6), name="a study")
    (folder / "report.html").write_text(page(folder), encoding="utf-8")
    return folder


@pytest.fixture
def opened(browser, folder):
    with opening(browser, folder / "report.html") as page:
        yield page


def test_hover_shows_mean_interval_and_n(opened, folder):
    from whichlayers.analysis.intervals import t_interval
    from whichlayers.results.frames import finished, load_points

    figure = chart(opened, "incremental")
    figure.scroll_into_view_if_needed()
    figure.locator("label", has_text="as_released").locator("input").uncheck()
    panel = figure.locator("svg[role=img]").first
    box = panel.bounding_box()
    marks = panel.locator("path[fill]:not([fill=none])").first.bounding_box()  # the first curve's first point
    opened.mouse.move(marks["x"] + marks["width"] / 2, marks["y"] + marks["height"] / 2)
    text = figure.locator(".tooltip").inner_text()
    points = finished(load_points(folder))
    rows = points.query("experiment == 'incremental' and task == 'SST-2' and train_size == 500 and x == 0")
    expected = t_interval(rows[rows["recipe"] == "as_described"]["value"])
    assert "500 examples" in text
    assert f"mean accuracy: {100 * expected.mean:.1f}" in text
    assert f"{100 * expected.low:.1f} to {100 * expected.high:.1f}" in text
    assert "n = 4" in text
    opened.mouse.move(box["x"] - 30, box["y"] - 30)
    assert figure.locator(".tooltip").is_hidden()


def test_keyboard_navigation_along_a_curve(opened):
    figure = chart(opened, "incremental")
    panel = figure.locator("svg[role=img]").first
    assert "from" in panel.get_attribute("aria-label")
    figure.locator("input").last.focus()
    opened.keyboard.press("Tab")  # from the last switch into the first panel
    assert panel.evaluate("node => node === document.activeElement")
    first = figure.locator(".tooltip").inner_text()
    assert "pretrained layers kept (k): 0" in first
    opened.keyboard.press("ArrowRight")
    assert "pretrained layers kept (k): 1" in figure.locator(".tooltip").inner_text()
    opened.keyboard.press("ArrowDown")
    assert figure.locator(".tooltip").inner_text().splitlines()[0] != first.splitlines()[0]
    opened.keyboard.press("Escape")
    assert figure.locator(".tooltip").is_hidden()


def test_switches_hide_tasks_sizes_recipes_and_trials(opened):
    figure = chart(opened, "incremental")

    def switch(name):
        figure.locator("label", has_text=name).locator("input").first.click()

    titles = figure.locator("svg[role=img] text[font-weight='600']")
    assert titles.all_text_contents() == ["SST-2", "CoLA"]
    lines = figure.locator("svg[role=img]").first.locator("path[stroke-width='2']")
    assert lines.count() == 4  # two sizes, two recipes
    switch("CoLA")
    assert titles.all_text_contents() == ["SST-2"]
    switch("5,000")
    assert lines.count() == 2
    switch("as_released")
    assert lines.count() == 1
    assert figure.locator("circle.trial").count() == 4 * 7  # few: initially shown
    switch("single trials")
    assert figure.locator("circle.trial").count() == 0
    assert figure.locator("svg[role=img] path[stroke-width='1.3'][opacity]").count() == 0
    switch("published: Tamkin et al. 2020")
    assert figure.locator("svg[role=img] path[stroke-width='1.3'][opacity]").count() == 1
    switch("SST-2")
    assert "Nothing selected" in figure.inner_text()


def test_the_layer_diagram_has_controls_and_tooltips(opened):
    figure = chart(opened, "layers")
    numbers = figure.locator("svg g rect:first-child")
    assert numbers.count() == 4 * 6
    numbers.first.hover()
    text = figure.locator(".tooltip").inner_text()
    assert "SST-2" in text
    assert "95% interval" in text
    figure.locator("select").first.select_option(label="Drop from re-initializing a single layer")
    assert numbers.count() == 6
    assert "this layer re-initialized" in figure.locator("figcaption").inner_text()


@pytest.mark.parametrize(("width", "with_half"), [(390, False), (1280, True)])
def test_boxes_of_a_layer_diagram_are_alike_in_all_rows(browser, tmp_path, width, with_half):
    from whichlayers.report.build import page as render

    sizes, tasks = (500, 1000, 5000), ("SST-2", "CoLA", "QNLI")
    points = [*incremental(tasks[:2], sizes), *incremental(tasks[2:], sizes[:1])]
    folder = write_results(tmp_path, points, lifelike(6))
    (folder / "report.html").write_text(render(folder), encoding="utf-8")
    with opening(browser, folder / "report.html", width) as page:
        figure = chart(page, "layers")
        rows = figure.locator(".panels svg[role=img]").all()
        assert (len(rows) > 1) is not with_half
        for row in rows:
            labels = row.locator("text[pointer-events=none]").all_text_contents()
            assert {"\u00b1" in label for label in labels} == {with_half}
        assert figure.get_by_text("Too narrow for \u00b1").is_visible() is not with_half


def test_one_trial_a_point_has_no_switch_for_single_trials(browser, tmp_path):
    from whichlayers.report.build import page as render

    folder = write_results(tmp_path, incremental(sizes=(500, 5000), trials=1), lifelike(6))
    (folder / "report.html").write_text(render(folder), encoding="utf-8")
    with opening(browser, folder / "report.html") as page:
        assert chart(page, "incremental").locator("label", has_text="500").count() == 1  # there are controls
        assert page.locator("label", has_text="single trials").count() == 0
        assert not chart(page, "layers").get_by_text("Too narrow").is_visible()


def test_tables_sort_both_ways(opened):
    table = opened.locator("#incremental").locator("xpath=..").locator("table").first
    head = table.locator("th", has_text="gain").first
    column = table.locator("thead th").all_inner_texts().index("gain")

    def values():
        cells = table.locator(f"tbody tr > :nth-child({column + 1})").all_inner_texts()
        return [float(text.replace("−", "-")) for text in cells]

    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert values() == sorted(values())
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert values() == sorted(values(), reverse=True)


def saved(page, figure, name):
    with page.expect_download() as waiting:
        figure.get_by_role("button", name=name, exact=True).click()
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


def test_the_data_behind_a_figure_can_be_saved(opened, folder):
    from whichlayers.report.tables import summary
    from whichlayers.results.frames import finished, load_points

    figure = chart(opened, "incremental")
    name, content = saved(opened, figure, "Points as CSV")
    assert name == "incremental.csv"
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    table = summary(finished(load_points(folder))).query("experiment == 'incremental'")
    own = [row for row in rows if not row["curve"].startswith("published")]
    assert len(own) == len(table)
    assert sorted(float(row["mean"]) for row in own) == pytest.approx(sorted(table["mean"]), abs=1e-5)
    name, content = saved(opened, figure, "Trials as CSV")
    assert len(list(csv.reader(io.StringIO(content.decode())))) == 1 + 2 * 2 * 2 * 7 * 4
    assert saved(opened, figure, "SVG")[1].startswith(b"<svg")
    assert saved(opened, chart(opened, "layers"), "PNG")[1].startswith(b"\x89PNG")
    assert b"first layer" in saved(opened, chart(opened, "layers"), "Layers as CSV")[1]


def test_dark_by_the_system_and_by_the_button(browser, folder):
    with opening(browser, folder / "report.html", color_scheme="dark") as page:
        paint = "getComputedStyle(document.body).backgroundColor"
        ink = "document.querySelector('figure[data-chart=incremental] svg text').getAttribute('fill')"
        assert (page.evaluate(paint), page.evaluate(ink)) == ("rgb(15, 18, 23)", "#e8ebf0")
        page.get_by_role("button", name="Light mode").click()
        assert (page.evaluate(paint), page.evaluate(ink)) == ("rgb(246, 247, 249)", "#1c2430")
        page.reload()
        page.wait_for_selector("figure[data-chart=incremental] svg[role=img]")
        assert page.evaluate(ink) == "#1c2430"  # remembered


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """24 layers, small distances, a long name of a file: what is too wide for a phone and for paper."""
    from whichlayers.report.build import page

    study_points = incremental(("SST-2", "UD-EWT:xpos"), (500, 5000), 4, depth=24) + permutation(depth=24)
    folder = write_results(
        tmp_path_factory.mktemp("deep"),
        study_points,
        lifelike(24),
        depth=24,
        moved=lambda p, n: 0.02 + 1e-4 * n,
    )
    (folder / "study.toml").write_text(f'description = "deep"\n# {"x" * 300}\n')
    (folder / "report.html").write_text(page(folder), encoding="utf-8")
    return folder


def test_axis_labels_do_not_overlap_tick_labels(browser, deep):
    with opening(browser, deep / "report.html") as page:
        found = page.locator("figure svg[role=img]:has(text[transform])").evaluate_all(
            """nodes => nodes.filter(node => node.closest("figure").dataset.chart !== "layers").map(node => {
                const box = text => text.getBoundingClientRect();
                const ticks = [...node.querySelectorAll("text[text-anchor=end]:not([transform])")].map(box);
                const name = box(node.querySelector("text[transform^='rotate(-90']"));
                return [node.getBoundingClientRect().left, name.left, name.right, Math.min(...ticks.map(t => t.left))];
            })"""
        )
        assert len(found) == 7  # two tasks, both together at two sizes, their weights, and the permutations
        for left, name_left, name_right, ticks in found:
            assert left - 0.5 <= name_left < name_right <= ticks


def test_tables_fit_a_phone_without_breaking_words(browser, deep):
    with opening(browser, deep / "report.html", 390, has_touch=True) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        rows = page.locator("table").first.locator("tbody tr")
        assert max(row.bounding_box()["height"] for row in rows.all()) < 260
        heads = page.locator("tbody th.text, thead th button").evaluate_all(
            """nodes => nodes.filter(node => node.checkVisibility({ contentVisibilityAuto: true })).map(node => {
                const range = document.createRange();
                range.selectNodeContents(node);
                return [node.textContent, new Set([...range.getClientRects()].map(box => box.top)).size];
            })"""
        )
        assert len(heads) > 40
        for text, lines in heads:
            assert lines <= len(text.replace("-", " ").split()), text


def test_findings_are_on_the_first_screen_of_a_phone(browser, deep):
    with opening(browser, deep / "report.html", 390) as page:
        box = page.locator("#main-findings ~ ul.findings li").first.bounding_box()
        assert box["y"] + box["height"] < 844


def test_targets_and_text_are_large_enough(browser, deep):
    """WCAG 2.5.8: targets of at least 24 by 24 px, unless they are links in a sentence."""
    for width in (390, 1280):
        with opening(browser, deep / "report.html", width) as page:
            page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            page.wait_for_timeout(100)
            small = page.evaluate(
                """() => [...document.querySelectorAll("button, select, summary, .controls label, nav a, figcaption a")]
                    .map(node => [node.textContent.slice(0, 30), node.getBoundingClientRect()])
                    .filter(([, box]) => box.width && (box.height < 23.9 || box.width < 23.9)).map(([text]) => text)"""
            )
            assert small == []
            tiny = page.evaluate(
                """() => [...document.querySelectorAll("body *")]
                    .filter(node => [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim()))
                    .filter(node => node.getClientRects().length && parseFloat(getComputedStyle(node).fontSize) < 12)
                    .map(node => node.textContent.slice(0, 40))"""
            )
            assert tiny == []


def test_a_table_that_scrolls_says_so(browser, deep):
    with opening(browser, deep / "report.html", 390) as page:
        found = page.evaluate(
            """() => [...document.querySelectorAll(".scroll")]
                .filter(box => box.checkVisibility({ contentVisibilityAuto: true }))  // not in closed details
                .map(box => [box.scrollWidth > box.clientWidth + 1, !box.previousElementSibling.hidden])"""
        )
        assert any(wide for wide, _ in found)
        assert all(wide == hinted for wide, hinted in found)


def test_intervals_beyond_the_panel_end_in_an_arrowhead(browser, tmp_path):
    from whichlayers.report.build import page as render

    folder = write_results(
        tmp_path, incremental(trials=2), lambda p: 0.7 + 0.01 * p.x + 0.05 * p.trial.seed * (p.x == 3)
    )
    (folder / "report.html").write_text(render(folder), encoding="utf-8")
    with opening(browser, folder / "report.html") as page:
        bars = chart(page, "incremental").locator("svg[role=img] path[stroke-width='1.2']")
        shapes = [bar.get_attribute("d") for bar in bars.all()]
        assert len(shapes) == 7
        assert [shape.count("L") for shape in shapes] == [0, 0, 0, 4, 0, 0, 0]  # two lines per arrowhead
        assert [shape.count("h") for shape in shapes] == [2, 2, 2, 0, 2, 2, 2]


def test_tables_do_not_widen_the_printed_page(browser, deep):
    with opening(browser, deep / "report.html", 700) as page:
        page.emulate_media(media="print")
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") <= 700
        size = "node => parseFloat(getComputedStyle(node).fontSize)"
        claim = page.locator("td.wide:has(.small)").first
        assert claim.locator(".small").first.evaluate(size) < claim.evaluate(size)
        assert page.locator("pre").is_hidden()


@pytest.mark.parametrize("width", [360, 768])
def test_a_phone_scrolls_down_and_not_sideways(browser, folder, width):
    with opening(browser, folder / "report.html", width, has_touch=True) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        panel = chart(page, "incremental").locator("svg[role=img]").first
        assert panel.bounding_box()["width"] > 0.6 * min(width, 400)
        panel.scroll_into_view_if_needed()
        mark = panel.locator("path[fill]:not([fill=none])").first.bounding_box()
        page.touchscreen.tap(mark["x"] + 3, mark["y"] + 3)
        assert "mean" in chart(page, "incremental").locator(".tooltip").inner_text()


def test_the_printed_page_is_light_and_has_no_switches(browser, folder):
    with opening(browser, folder / "report.html", color_scheme="dark") as page:
        page.emulate_media(media="print")
        page.wait_for_timeout(100)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        ink = "document.querySelector('figure[data-chart=incremental] svg text').getAttribute('fill')"
        assert page.evaluate(ink) == "#1c2430"
        assert page.locator(".controls").first.is_hidden()
        assert page.locator("nav").is_hidden()
        assert len(page.pdf()) > 20_000


def test_markup_in_names_is_not_executed(browser, tmp_path):
    from whichlayers.report.build import page as made_page

    study_points = incremental((MARKUP, "=1+1"), (500, 900), models=(MARKUP, "other"))
    folder = write_results(
        tmp_path, study_points, lambda p: MARKUP if p.x == 2 else lifelike(6)(p), name=MARKUP
    )
    (folder / "report.html").write_text(made_page(folder), encoding="utf-8")
    with opening(browser, folder / "report.html") as page:
        figure = chart(page, "incremental")
        figure.locator("svg[role=img]").first.hover(position={"x": 80, "y": 150})
        _, content = saved(page, figure, "Points as CSV")
        assert page.evaluate("window.hacked") is None
        assert page.locator("main script, main img").count() == 0
        assert MARKUP in page.locator("h1").inner_text()
        rows = list(csv.DictReader(io.StringIO(content.decode())))
        assert {row["task"] for row in rows} == {MARKUP, "'=1+1"}  # text, and not a formula


def test_labels_of_points_that_are_close_do_not_overlap(opened):
    """The rule of plots/point_labels.py, which the page has in JavaScript."""
    from whichlayers.plots.point_labels import place_labels

    script = (resources.files("whichlayers.report") / "web" / "drawing.js").read_text(encoding="utf-8")
    rule = script.partition("class Drawing")[0].partition('"use strict";')[2]

    def place(points):
        texts = [{"x": x, "y": -y, "text": text} for x, y, text in points]
        found = opened.evaluate(f"(points) => {{ {rule} return placeLabels(points); }}", texts)
        return [tuple(place) for place in found]

    apart, same = [(0, 0, "1"), (100, 0, "2")], [(0, 0, text) for text in "123456"]
    assert place(apart) == [(6, -5), (6, -5)]
    assert len(set(place(same))) == 6
    sides = [[(x > 0, y < 0) for x, y in place(same)]]
    sides.append([(x > 0, y > 0) for x, y in place_labels([(0, 0)] * 6, list("123456"))])
    assert sides[0] == sides[1]
