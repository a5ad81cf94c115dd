"""Figures and tables of the experiments on words."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_results import prune, write_results
from synthetic_words import forgetting, word_points

from whichlayers.analysis.published import published_pruning, published_share, published_words
from whichlayers.plots.captions import caption
from whichlayers.plots.chart_data import chart_of
from whichlayers.plots.display_names import LINGUISTIC
from whichlayers.plots.figures import draw
from whichlayers.plots.published_overlay import crosses_caption
from whichlayers.plots.word_figures import PUBLISHED
from whichlayers.report.build import write_report
from whichlayers.report.tables import grid
from whichlayers.report.word_tables import word_tables
from whichlayers.results.frames import finished, load_points

DEPTH = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    points = word_points(depth=DEPTH, corpora=("UD-EWT:xpos", "CoNLL-2000:chunk"))
    return write_results(tmp_path_factory.mktemp("words"), points, forgetting(DEPTH), depth=DEPTH)


@pytest.fixture(scope="module")
def points(folder):
    return finished(load_points(folder))


def panels(figure):
    return {(p.task, p.subtitle): p for p in figure.panels}


@pytest.mark.parametrize("experiment", LINGUISTIC)
def test_every_experiment_has_a_figure_with_a_panel_a_corpus_and_model(points, experiment):
    figure = draw(points, experiment)
    assert {p.task for p in figure.panels} == {"UD-EWT:xpos", "CoNLL-2000:chunk"}
    assert all(p.marks for p in figure.panels)


def test_layers_before_and_after(points):
    panel = panels(draw(points, "word_probing"))["UD-EWT:xpos", "roberta-base"]
    drawn = {mark.about["condition"]: mark.table for mark in panel.marks}
    assert list(drawn) == ["pretrained", "SST-2", "RTE"]
    rows = points[(points["experiment"] == "word_probing") & (points["model"] == "roberta-base")]
    mine = rows[(rows["task"] == "UD-EWT:xpos") & (rows["finetuned_on"] == "RTE")]
    means = mine.groupby("x")["value"].mean()
    assert drawn["RTE"]["mean"].tolist() == pytest.approx(means.tolist())
    assert len(means) == DEPTH + 1
    legend = [text.get_text() for text in draw(points, "word_probing").legends[0].get_texts()]
    assert legend[:3] == ["pretrained", "finetuned on SST-2", "finetuned on RTE"]


def test_sets_of_neurons_over_models_with_the_published_ones_beside(points):
    panel = panels(draw(points, "neurons", overlay=True))["UD-EWT:xpos", "roberta-base"]
    names = [text.get_text() for text in panel.axes.get_xticklabels()]
    assert names == ["pretrained", "SST-2", "RTE"]
    assert [m.about["condition"] for m in panel.marks if m.kind == "line"] == [
        "all neurons", "top 10%", "top 5%", "random 10%", "random 5%", "bottom 10%", "bottom 5%",
    ]  # fmt: skip
    published = {m.about["condition"]: m.table for m in panel.marks if m.kind == "published"}
    assert published["bottom 5%"]["mean"].tolist() == pytest.approx([0.953, 0.604, 0.904])
    assert "bottom 10%" not in published  # the paper's sets have 5% for POS
    assert {m.name for m in panel.marks if m.kind == "published"} == {PUBLISHED}


@pytest.fixture(scope="module")
def one_share_each(tmp_path_factory):
    kinds = [
        {"kind": "neurons", "corpora": [corpus], "shares": [share], "rankings": ["lca", "probeless"]}
        for corpus, share in (("UD-EWT:xpos", 0.05), ("CoNLL-2000:chunk", 0.1))
    ]
    given = word_points(("bert-base-uncased",), (), ("UD-EWT:xpos", "CoNLL-2000:chunk"), kinds, depth=DEPTH)
    study = write_results(tmp_path_factory.mktemp("shares"), given, forgetting(DEPTH), depth=DEPTH)
    return finished(load_points(study))


@pytest.mark.parametrize("experiment", ["neurons", "neuron_spread"])
def test_corpora_with_one_share_each_stand_in_one_row(one_share_each, experiment):
    drawn = draw(one_share_each, experiment).panels
    shares = [(p.task, p.subtitle.partition("%")[0].split()[-1]) for p in drawn]
    rows = {"neurons": 1, "neuron_spread": 2}[experiment]  # of the spread one a ranking
    assert shares == [("UD-EWT:xpos", "5"), ("CoNLL-2000:chunk", "10")] * rows
    assert {p.axes.get_subplotspec().rowspan.start for p in drawn} == set(range(rows))
    legend = [text.get_text() for text in draw(one_share_each, experiment).legends[0].get_texts()]
    assert not any("%" in name for name in legend)


@pytest.mark.parametrize("experiment", ["neurons", "smallest_set", "selectivity"])
def test_no_two_sets_look_the_same(points, one_share_each, experiment):
    for given in (points, one_share_each):
        if experiment not in set(given["experiment"]):
            continue
        for panel in draw(given, experiment).panels:
            looks = [
                (m.look["color"], m.look["marker"], m.look["markerfacecolor"])
                for m in panel.marks
                if m.kind == "line"
            ]
            assert len(set(looks)) == len(looks)


def pruned(folder, tasks, train_rows, counts=(6,)):
    rows = prune(tasks=tasks, depth=12, counts=counts)  # finetuned on 5000 examples
    study = write_results(
        folder, rows, lambda p: 0.9 - 0.1 * (p.condition == "bottom"), depth=12, train_rows=train_rows
    )
    return finished(load_points(study))


def test_pruned_layers_with_the_published_ones_beside(tmp_path):
    points = pruned(tmp_path, ("SST-2",), 5000, (3, 6))
    figure = draw(points, "prune", overlay=True)
    (panel,) = figure.panels
    told = crosses_caption(figure, points, "prune")
    assert told.startswith("Crosses, published for BERT: Durrani et al. 2021, Tables 2 and 6")
    crosses = [line.get_xdata()[0] for line in panel.axes.lines if line.get_marker() == "x"]
    ours = [line.get_xdata()[1] for line in panel.axes.lines if line.get_marker() in "os"]
    assert crosses == pytest.approx(ours), "each at the place of its own line"
    theirs = {m.about["condition"]: m.table for m in panel.marks if m.kind == "published"}
    assert {name: table.values.tolist() for name, table in theirs.items()} == {
        "top": [[6, pytest.approx(0.903)]],
        "bottom": [[6, pytest.approx(0.881)]],
    }


def test_a_study_of_few_examples_has_no_published_number_of_whole_training_sets_beside(tmp_path):
    points = pruned(tmp_path, ("SST-2",), 67349)
    figure = draw(points, "prune", overlay=True)
    assert all(mark.kind != "published" for panel in figure.panels for mark in panel.marks)
    assert crosses_caption(figure, points, "prune") == ""
    (table,) = word_tables(points, "prune")
    assert not any(name.startswith("published") for name in table.heads)
    assert "Published" not in table.note


def test_many_curves_have_bars_on_the_first_alone(tmp_path):
    tasks = ("SST-2", "RTE", "CoLA", "QNLI")
    made = word_points(("bert-base-uncased",), tasks, ("UD-EWT:xpos",), depth=DEPTH)
    many = finished(load_points(write_results(tmp_path, made, forgetting(DEPTH), depth=DEPTH)))
    for experiment in ("word_probing", "neuron_spread"):
        figure = draw(many, experiment)
        for panel in figure.panels:
            assert [mark.bars for mark in panel.marks] == [True] + [False] * len(tasks)
        assert figure.trials_first is False
        assert "Bars stand on the first curve alone" in caption(many, experiment)


def test_single_trials_are_shown_in_all_panels_of_a_figure_or_in_none(tmp_path):
    usual = {"kind": "neurons", "shares": [0.05]}
    kinds = [usual, usual | {"rankings": ["probeless"], "finetuned_on": []}]
    asked = ("bert-base-uncased",), ("SST-2", "RTE", "CoLA"), ("UD-EWT:xpos",)
    made = word_points(*asked, kinds, depth=DEPTH)
    mixed = finished(load_points(write_results(tmp_path, made, forgetting(DEPTH), depth=DEPTH)))
    figure = draw(mixed, "neuron_spread")
    assert [len(panel.marks) for panel in figure.panels] == [4, 1]
    assert figure.trials_first is False
    assert "one trial" not in [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("experiment", ["neurons", "smallest_set"])
def test_what_models_were_finetuned_on_is_asked_only_where_some_were(points, one_share_each, experiment):
    assert chart_of(draw(points, experiment), experiment, "", "")["x"] == "finetuned on"
    assert chart_of(draw(one_share_each, experiment), experiment, "", "")["x"] == "model"


def test_how_large_sets_are_is_said_where_all_are_alike(tmp_path):
    kinds = [{"kind": "neurons", "shares": [0.05]}, {"kind": "selectivity", "shares": [0.05]}]
    made = word_points(("bert-base-uncased",), (), ("UD-EWT:xpos", "PMB:sem"), kinds, depth=DEPTH)
    alike = finished(load_points(write_results(tmp_path, made, forgetting(DEPTH), depth=DEPTH)))
    said = {e: {p.subtitle for p in draw(alike, e).panels} for e in set(alike["experiment"])}
    assert said == {
        "neurons": {"sets of 5% of the neurons"},
        "selectivity": {"sets of 5% of the neurons"},
        "description_length": {"sets of 5% of the neurons"},
        "neuron_spread": {"top 5%"},
        "smallest_set": {""},
    }


def test_few_curves_all_have_bars(points):
    assert all(mark.bars for panel in draw(points, "word_probing").panels for mark in panel.marks)
    assert "alone" not in caption(points, "word_probing")


@pytest.mark.parametrize("experiment", ["smallest_set", "selectivity", "description_length"])
def test_dot_plots_share_one_axis_from_zero(points, experiment):
    figure = draw(points, experiment)
    assert len({panel.axes.get_ylim() for panel in figure.panels}) == 1
    assert figure.panels[0].axes.get_ylim()[0] == 0
    told = chart_of(figure, experiment, "", "")
    assert {panel["group"] for panel in told["panels"]} == {""}
    assert all(panel["zero"] for panel in told["panels"])


def test_corpora_sets_and_rankings_are_called_so(one_share_each):
    told = chart_of(draw(one_share_each, "neuron_spread"), "neuron_spread", "", "")
    assert {dim["label"]: dim["values"] for dim in told["dims"]} == {
        "corpus": ["UD-EWT:xpos", "CoNLL-2000:chunk"],
        "ranking": ["LCA", "probeless"],
    }
    assert grid(one_share_each, "neurons").heads[0] == "corpus"
    assert grid(one_share_each, "neurons").columns == ("5", "10", "all")
    assert grid(one_share_each, "neurons").x == "set, % of neurons"


def test_a_panel_is_told_by_the_names_of_its_models_and_the_sets_of_its_crosses(points):
    told = chart_of(draw(points, "neurons", overlay=True), "neurons", "", "", overlay=True)
    alt = next(p["alt"] for p in told["panels"] if p["sub"].startswith("bert"))
    assert " at pretrained, " in alt
    assert " at SST-2, " in alt
    assert " at 0" not in alt
    crosses = [mark for mark in told["marks"] if mark["kind"] == "published"]
    assert all(told["marks"][mark["of"]]["colour"] == mark["colour"] for mark in crosses)
    owners = {told["marks"][mark["of"]]["label"] for mark in crosses}
    assert owners == {"all neurons", "top 5%", "bottom 5%", "top 10%", "bottom 10%"}


def test_crosses_are_of_the_papers_own_ranking_and_their_caption_says_whose(one_share_each):
    figure = draw(one_share_each, "neurons", overlay=True)
    sets = {m.about["condition"] for p in figure.panels for m in p.marks if m.kind == "published"}
    assert sets == {"all neurons", "top", "bottom"}
    told = crosses_caption(figure, one_share_each, "neurons")
    assert "published for BERT: Durrani" in told
    assert "Penn Treebank" in told


def test_published_numbers_of_the_tables():
    assert published_words("bert", "UD-EWT:xpos", "")["top"] == pytest.approx(0.960)
    assert published_words("xlnet", "PMB:sem", "QNLI")["bottom"] == pytest.approx(0.178)
    assert published_words("bert", "CoNLL-2000:chunk", "")["selectivity selected"] == pytest.approx(0.2919)
    assert published_words("electra", "PMB:sem", "") == published_words("bert", "builtin:pos", "") == {}
    assert published_words("bert", "UD-EWT:upos", "") == {}  # another tag set
    assert (published_share("CoNLL-2000:chunk"), published_share("PMB:sem")) == (0.1, 0.05)
    assert published_pruning("roberta", "QNLI")["prune bottom 6"] == pytest.approx(0.637)
    assert published_pruning("mpnet", "QNLI") == {}


def test_tables_in_the_papers_form(points):
    tables = {table.label: table for table in word_tables(points, "neurons")}
    mine = tables["CoNLL-2000:chunk, roberta-base: accuracy with sets of neurons"]
    assert [row["finetuned on"] for row in mine.rows] == ["pretrained", "SST-2", "RTE"]
    assert mine.rows[1]["published bottom"] == "60.7"
    assert mine.rows[1]["bottom 10%"].startswith("4")
    assert mine.note.endswith("Published: Durrani et al. 2021, Tables 1, 4 and 5, for RoBERTa.")
    (seven,) = word_tables(points, "selectivity")
    rows = [r for r in seven.rows if r["corpus"] == "UD-EWT:xpos" and r["model"] == "bert-base-uncased"]
    row = rows[0]
    assert [r["neurons"] for r in rows[:2]] == ["all", "top 5%"]
    assert row["published selectivity"] in ("14.4", "14.5")
    ours = [float(row[name].split()[0]) for name in ("accuracy", "selectivity")]
    assert ours[0] - ours[1] == pytest.approx(50, abs=0.11)
    assert row["compression"].startswith(("4.0", "3.9"))
    assert len(seven.heads) <= 10
    assert "Compression: how many times shorter" in seven.note
    assert seven.note.endswith("for BERT and RoBERTa.")


def test_the_pretrained_model_alone_keeps_its_name_as_the_rows_head(one_share_each):
    for table in word_tables(one_share_each, "neurons"):
        assert next(iter(table.heads)) == "finetuned on"
        assert [row["finetuned on"] for row in table.rows] == ["pretrained"]


def test_pruning_is_table_2(tmp_path):
    (table,) = word_tables(pruned(tmp_path, ("SST-2", "QNLI"), 5000), "prune")
    assert next(iter(table.heads)) == "task"
    assert table.note.endswith("Tables 2 and 6, for BERT.")
    assert [row["task"] for row in table.rows] == ["SST-2", "QNLI"]
    row = table.rows[1]
    assert (row["baseline"], row["bottom 6 dropped"]) == ("90.0 ± 0.0", "80.0 ± 0.0")
    assert (row["published baseline"], row["published top 6"], row["published bottom 6"]) == (
        "91.1",
        "87.6",
        "83.7",
    )


def test_the_report_shows_it_all(folder):
    page = write_report(folder, overlay=True).read_text()
    for said in (
        "What layers know of words",
        "accuracy with sets of neurons",
        "against a control task",
        "published bottom",
    ):
        assert said in page
    for experiment in LINGUISTIC:
        assert (folder / "figures" / f"{experiment}.png").stat().st_size > 5000
    summary = (folder / "summary.csv").read_text()
    assert "neuron_spread,RTE: top 5%,roberta-base,CoNLL-2000:chunk" in summary
