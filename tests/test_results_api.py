"""`Results`: frames, claims, figures by name, layer effects and the description of the study."""

from __future__ import annotations

import pytest
from synthetic_results import incremental, lifelike, single_layer, write_results

import whichlayers

STUDY = """
name = "small"
models = ["./model"]
tasks = ["SST-2"]
experiments = ["incremental"]
train_sizes = [500]
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    points = incremental(sizes=(500, 5000), trials=4) + single_layer()
    return whichlayers.load(write_results(tmp_path_factory.mktemp("api"), points, lifelike(6)))


@pytest.mark.parametrize("margin", [-1, 0, 1.5, float("nan")])
def test_the_margin_must_be_in_the_range_of_the_metric(results, margin):
    from typer.testing import CliRunner

    from whichlayers.cli import app

    with pytest.raises(whichlayers.WhichlayersError, match="give a number from 1e-06 to 1"):
        results.claims(margin=margin)
    assert len(results.claims(margin=0.02))
    if margin == margin:  # the command line has the same range
        result = CliRunner().invoke(app, ["claims", str(results.folder), "--margin", str(margin)])
        assert (result.exit_code, "--margin" in result.output) == (2, True)


def test_a_figure_is_matplotlibs_and_has_the_means(results):
    from matplotlib.figure import Figure

    figure = results.figure("incremental")
    assert isinstance(figure, Figure)
    line = next(
        line for line in figure.axes[0].lines if line.get_marker() == "o" and len(line.get_xdata()) == 7
    )
    means = results.summary().query("experiment == 'incremental' and train_size == 500").sort_values("x")
    assert list(line.get_ydata()) == pytest.approx(list(means["mean"]))


def test_every_name_gives_a_figure_and_no_other_does(results):
    names = results.figures()
    assert names == ["incremental", "single_layer", "layers", "layers_single_layer"]
    for name in names:
        assert results.figure(name).axes
    with pytest.raises(
        whichlayers.WhichlayersError, match="no figure 'weight_change'; available figures: incremental"
    ):
        results.figure("weight_change")


def test_claims_are_a_table_with_one_row_per_test(results):
    table = results.claims()
    assert {"claim", "claim_verdict", "effect", "low", "high", "p_adjusted"} <= set(table.columns)
    assert (table["claim"] == "T1").sum() == 1  # the paper excepts SST-2 with 500 examples from the other
    assert set(table.loc[table["claim"] == "T5", "claim_verdict"]) != {"not tested"}
    wide = results.claims(margin=0.5)
    assert list(wide.loc[wide["claim"] == "T5", "claim_verdict"].unique()) == ["holds"]


def test_layer_effects_and_the_description_of_the_study(results, tmp_path):
    layers = results.layers()
    assert (layers["source"] == "incremental").sum() == 2 * 6
    assert results.question() == ""  # there is no study file
    (tmp_path / "study.toml").write_text(STUDY)
    write_results(tmp_path, incremental(), lifelike(6))
    description = whichlayers.load(tmp_path).question()
    assert description.startswith("Which layers of")
    (tmp_path / "study.toml").write_text("name = 3")
    assert whichlayers.load(tmp_path).question() == ""
