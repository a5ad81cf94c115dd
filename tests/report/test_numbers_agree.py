"""The same quantity has the same text everywhere: sentences, tables, charts, layer diagram, files and terminal."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console
from synthetic_results import incremental, write_results

from whichlayers.analysis.intervals import ends_of_one_of, t_interval
from whichlayers.plots.draw_layers import draw_layers
from whichlayers.plots.layer_diagram import layer_diagrams
from whichlayers.report.build import write_report
from whichlayers.report.terminal import summary_table
from whichlayers.results.frames import finished, load_points
from whichlayers.text import format_range

# 50.24996 and 14.74996 points: "50.2" and "+14.7", but "50.3" and "+14.8" if rounded to two or three decimals first.
SCORES = {0: 0.5024996, 1: 0.6499992, 2: 0.9}
OFFSETS = (0.001, -0.003, 0.002)  # of the seeds; they add up to zero


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    def score(point):
        return SCORES[int(point.x)] + OFFSETS[point.trial.seed] * (1 + int(point.x))

    points = incremental(trials=3, depth=2)
    return write_results(tmp_path_factory.mktemp("numbers"), points, score, depth=2)


@pytest.fixture(scope="module")
def page(study):
    return write_report(study).read_text(encoding="utf-8")


def test_a_score_has_one_text(study, page):
    cells = re.findall(r"<td[^>]*>([^<]*)(?:<span|</td>)", page)
    assert cells.count("50.2") == 3  # in the tables of the recommendation, of gains and of all points
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    chart, column = data["charts"]["incremental"], data["layers"][0]["columns"][0]
    assert "mean accuracy: 50.2" in chart["marks"][0]["tooltip"]["lines"][0]
    assert "from 50.2 at 0" in chart["panels"][0]["alt"]
    assert "50.2" in [text for _, text, _ in column["labels"]]
    (diagram,) = layer_diagrams(finished(load_points(study)))
    assert "50.2" in [text.get_text() for text in draw_layers(diagram).axes[0].texts]
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(summary_table(study))
    assert "50.2 ±" in console.export_text()
    for wrong in ("50.3", "0.502", "0.503", "50.25"):
        assert wrong not in page.partition('id="data"')[0]


def test_an_effect_has_one_text(study, page):
    text = re.sub(r"<[^>]*>", " ", page.partition('id="data"')[0])
    assert "the effect of layer 2 on SST-2 with 500 examples: +25.0 points of accuracy" in text
    assert "1\u00a0(+14.7), 2\u00a0(+25.0)" in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    (first, second) = data["layers"][0]["columns"][0]["texts"]
    assert (first[0], second[0]) == ("+14.7", "+25.0")
    step = t_interval(
        [SCORES[2] - SCORES[1] + offset for offset in OFFSETS]
    )  # offsets are three and two times as large
    usual, of_two = (step.low, step.high), ends_of_one_of(2, step.mean, step.sd, 3)
    assert (
        f"95% interval: {format_range(*usual, signed=True)}"
        in data["layers"][0]["columns"][0]["tooltips"][1][1]
    )
    adjusted = f"{format_range(*of_two, signed=True)}, adjusted for the choice among 2, 3 paired trials"
    assert f"+25.0 points of accuracy (95% interval {adjusted})" in text  # the largest of two
    assert "1 (+14.7)" in data["layers"][0]["alt"]
    (diagram,) = layer_diagrams(finished(load_points(study)))
    drawn = [t.get_text() for t in draw_layers(diagram).axes[0].texts]
    assert any(t.startswith("+14.7 ±") for t in drawn)
    assert "+14.8" not in page


def test_exports_are_not_rounded(study, page):
    summary = (study / "summary.csv").read_text(encoding="utf-8")
    assert "0.5024996" in summary


def test_the_main_findings_give_each_answer_in_one_sentence(page):
    start, end = page.index('id="main-findings"'), page.index('id="recommendation"')
    short, full = page[start:end], page[end : page.index('id="setup"')]
    assert "Layers to re-initialize" in short
    assert "<li>Not enough trials: SST-2, 500 examples.</li>" in short
    assert "Not enough trials: choosing the best of 2" in full
    assert "choosing the best of" not in short
