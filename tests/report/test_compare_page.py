"""The page and the table of two studies."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sqlite3
from pathlib import Path

import pandas as pd
import pytest
from synthetic_results import incremental, lifelike, localized, permutation, write_results
from synthetic_words import forgetting, word_points
from typer.testing import CliRunner

from whichlayers.analysis.compare_studies import compare_studies
from whichlayers.cli import app
from whichlayers.report.compare_page import draw_differences, write_comparison

NAME = "<b>second</b>"


@pytest.fixture
def two(tmp_path, monkeypatch):
    study_points = incremental(("SST-2", "CoLA"), (500, 5000), 4) + permutation(trials=3) + localized()
    write_results(tmp_path / "one", study_points, lifelike(6), name="first")

    def higher(p):
        return lifelike(6)(p) + 0.01 + 1e-9 * p.trial.seed  # equal differences would not be significant

    write_results(tmp_path / "two", study_points[: len(study_points) - 3], higher, name=NAME)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_shows_the_table_and_writes_the_page(two):
    result = CliRunner().invoke(app, ["compare", "one", "two"])
    assert result.exit_code == 0, result.output
    # four incremental curves, permuted, two of blocks, two baselines of both: a difference and its bounds
    assert result.output.count("+1.0  +1.0 to +1.0 ") == 11
    assert f"{NAME} is significantly higher in" in result.output.replace("\n", " ")
    assert "unpaired: localized, in first" in result.output
    page = (two / "compare.html").read_text(encoding="utf-8")
    assert NAME not in page
    assert "&lt;b&gt;second&lt;/b&gt; minus first" in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    assert set(data["charts"]) == {
        f"{kind}_{what}"
        for kind in ("incremental", "permutation", "localized")
        for what in ("difference", "both")
    }
    lines = [m for m in data["charts"]["incremental_difference"]["marks"] if m["kind"] == "line"]
    assert all(row[1] == pytest.approx(0.01) for mark in lines for row in mark["rows"])


def charts_of(first, second, target):
    write_comparison(compare_studies(first, second), target)
    return json.loads(re.search(r'id="data">(.*?)</script>', target.read_text(encoding="utf-8"))[1])["charts"]


def test_permutations_are_numbered_and_not_joined(two):
    charts = charts_of(two / "one", two / "two", two / "page.html")
    for what in ("difference", "both"):
        chart = charts[f"permutation_{what}"]
        assert chart["x"] == "permutation no."
        assert all(mark["dash"] is None for mark in chart["marks"] if mark["kind"] == "line")
    labels = [dim["label"] for dim in charts["localized_both"]["dims"]]
    assert labels == ["condition", "setting"]
    conditions = charts["localized_both"]["dims"][0]["values"]
    assert sorted(conditions) == ["block preserved", "block re-initialized"]


def test_every_condition_has_a_style_of_its_own():
    names = [f"condition {number}" for number in range(8)]  # more than there are colors
    frame = pd.DataFrame(
        {
            "experiment": "freeze",
            "task": "SST-2",
            "train_size": 500,
            "condition": names,
            "variant": "",
            "x": 1.0,
        }
    )
    frame = frame.assign(seed=0, metric="accuracy", a=0.5, b=0.6, model="", depth=6)
    (panel,) = draw_differences(frame, "freeze").panels
    styles = [mark.style for mark in panel.marks if mark.kind == "line"]
    assert len({(style["color"], style["marker"]) for style in styles}) == len(names)


def test_sets_of_neurons_are_drawn_over_the_models(tmp_path):
    study_points = word_points(("bert-base-uncased",), ("SST-2",), ("UD-EWT:xpos",), depth=6)
    for name in ("one", "two"):
        write_results(tmp_path / name, study_points, forgetting(6), name=name, depth=6)
    charts = charts_of(tmp_path / "one", tmp_path / "two", tmp_path / "page.html")
    for what in ("difference", "both"):
        chart = charts[f"neurons_{what}"]
        assert chart["x"] == "finetuned on"
        assert all(panel["ticks"] == [[0, "pretrained"], [1, "SST-2"]] for panel in chart["panels"])
        sets = next(dim for dim in chart["dims"] if dim["name"] == "condition")
        assert sets["label"] == "neurons"
        assert {"all neurons", "top 5%", "bottom 10%"} <= set(sets["values"])
        assert "variant" not in [dim["name"] for dim in chart["dims"]]
    assert "set (% of neurons)" in (tmp_path / "page.html").read_text(encoding="utf-8")
    for what in ("difference", "both"):
        chart = charts[f"neurons_{what}"]
        assert all(mark["dash"] is None for mark in chart["marks"] if mark["kind"] == "line")
        assert chart["dims"][0]["label"] != "task"


def write_words(folder, name, depth, family, head):
    """Results of word probes of a model, before and after finetuning; the pretrained model has no head."""
    kinds = ["word_probing", "neurons", {"kind": "incremental", "keep": "all"}]
    points = word_points((name,), ("SST-2",), ("UD-EWT:xpos",), kinds, depth=depth)
    points = [
        dataclasses.replace(
            p, trial=dataclasses.replace(p.trial, head=head if p.trial.train_size else "mean")
        )
        for p in points
    ]

    def score(point):
        if point.experiment in ("incremental", "word_probing"):
            return 0.5 + 0.3 * point.x / depth + 0.001 * point.trial.seed
        return forgetting(depth)(point)

    write_results(folder, points, score, name=name, depth=depth)
    with contextlib.closing(sqlite3.connect(folder / "results.db")) as db:
        db.execute("UPDATE models SET family = ?", (family,))
        db.commit()


def test_an_encoder_and_a_decoder_of_another_depth(tmp_path, monkeypatch):
    write_words(tmp_path / "one", "an-encoder", 6, "bert", "mean")
    write_words(tmp_path / "two", "a-decoder", 9, "llama", "last")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["compare", "one", "two"])
    assert result.exit_code == 0, result.output
    output = " ".join(result.output.split())
    context = (
        "In a decoder, a word sees only the words to the left of it (a-decoder); in an encoder it sees the"
    )
    for text in ("head: mean in A, last in B", "layers: 6 in A, 9 in B", context):
        assert text in output
    page = (tmp_path / "compare.html").read_text(encoding="utf-8")
    charts = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])["charts"]
    for what in ("difference", "both"):
        for experiment in ("incremental", "word_probing"):
            chart = charts[f"{experiment}_{what}"]
            assert chart["x"].endswith(", share of all layers")
            for panel in chart["panels"]:
                assert panel["ticks"] == [[0, "0%"], [2, "33%"], [4, "67%"], [6, "100%"]]
            caption = "The models have 6 and 9 layers: points at the same share of the layers are compared."
            assert caption in chart["caption"]
        assert context in charts[f"word_probing_{what}"]["caption"]
        assert context in charts[f"neurons_{what}"]["caption"]
        assert context not in charts[f"incremental_{what}"]["caption"]
    finetuned = {
        row["condition"] for row in compare_studies(Path("one"), Path("two")).points.to_dict("records")
    }
    assert {"pretrained", "SST-2"} <= finetuned, "models with other heads are paired"
    lines = [m for m in charts["word_probing_difference"]["marks"] if m["kind"] == "line"]
    assert all(row[1] == pytest.approx(0, abs=1e-9) for mark in lines for row in mark["rows"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["one", "three"], "there is no three"),
        (["one", "empty"], "holds no results.db"),
        (["one", "two", "--out", "nowhere/page.html"], "the folder nowhere does not exist"),
    ],
)
def test_errors(two, arguments, message):
    (two / "empty").mkdir()
    result = CliRunner().invoke(app, ["compare", *arguments])
    assert result.exit_code == 2
    assert message in result.output.replace("\n", " ")
