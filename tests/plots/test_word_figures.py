"""Figures and tables of word-level probing."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_results import prune, write_results
from synthetic_words import forgetting, word_points

from whichlayers.plots.captions import caption
from whichlayers.plots.chart_data import chart_of
from whichlayers.plots.figures import draw
from whichlayers.plots.published_overlay import crosses_caption
from whichlayers.plots.word_figures import PUBLISHED
from whichlayers.report.build import write_report
from whichlayers.report.tables import paper_tables, summary_grid
from whichlayers.results.frames import finished, load_points

DEPTH = 6
WORD_EXPERIMENTS = (
    *("word_probing", "neurons", "neuron_spread", "smallest_set"),
    *("selectivity", "description_length"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    points = word_points(depth=DEPTH, corpora=("UD-EWT:xpos", "CoNLL-2000:chunk"))
    return write_results(tmp_path_factory.mktemp("words"), points, forgetting(DEPTH), depth=DEPTH)


@pytest.fixture(scope="module")
def points(folder):
    return finished(load_points(folder))


def panels(figure):
    return {(p.task, p.subtitle): p for p in figure.panels}


@pytest.mark.parametrize("experiment", WORD_EXPERIMENTS)
def test_every_experiment_has_a_figure_with_a_panel_a_corpus_and_model(points, experiment):
    figure = draw(points, experiment)
    assert {p.task for p in figure.panels} == {"UD-EWT:xpos", "CoNLL-2000:chunk"}
    assert all(p.marks for p in figure.panels)


def test_layers_before_and_after(points):
    panel = panels(draw(points, "word_probing"))["UD-EWT:xpos", "roberta-base"]
    drawn = {mark.attributes["condition"]: mark.table for mark in panel.marks}
    assert list(drawn) == ["pretrained", "SST-2", "RTE"]
    rows = points[(points["experiment"] == "word_probing") & (points["model"] == "roberta-base")]
    chosen = rows[(rows["task"] == "UD-EWT:xpos") & (rows["finetuned_on"] == "RTE")]
    means = chosen.groupby("x")["value"].mean()
    assert drawn["RTE"]["mean"].tolist() == pytest.approx(means.tolist())
    assert len(means) == DEPTH + 1
    legend = [text.get_text() for text in draw(points, "word_probing").legends[0].get_texts()]
    assert legend[:3] == ["pretrained", "finetuned on SST-2", "finetuned on RTE"]


def test_sets_of_neurons_over_models_with_the_published_values(points):
    panel = panels(draw(points, "neurons", overlay=True))["UD-EWT:xpos", "roberta-base"]
    names = [text.get_text() for text in panel.axes.get_xticklabels()]
    assert names == ["pretrained", "SST-2", "RTE"]
    assert [m.attributes["condition"] for m in panel.marks if m.kind == "line"] == [
        "all neurons", "top 10%", "top 5%", "random 10%", "random 5%", "bottom 10%", "bottom 5%",
    ]  # fmt: skip
    published = {m.attributes["condition"]: m.table for m in panel.marks if m.kind == "published"}
    assert published["bottom 5%"]["mean"].tolist() == pytest.approx([0.953, 0.604, 0.904])
    assert "bottom 10%" not in published  # the paper's sets have 5% for POS
    assert {m.name for m in panel.marks if m.kind == "published"} == {PUBLISHED}


@pytest.fixture(scope="module")
def one_share_each(tmp_path_factory):
    kinds = [
        {"kind": "neurons", "corpora": [corpus], "shares": [share], "rankings": ["lca", "probeless"]}
        for corpus, share in (("UD-EWT:xpos", 0.05), ("CoNLL-2000:chunk", 0.1))
    ]
    study_points = word_points(
        ("bert-base-uncased",), (), ("UD-EWT:xpos", "CoNLL-2000:chunk"), kinds, depth=DEPTH
    )
    study = write_results(tmp_path_factory.mktemp("shares"), study_points, forgetting(DEPTH), depth=DEPTH)
    return finished(load_points(study))


@pytest.mark.parametrize("experiment", ["neurons", "neuron_spread"])
def test_corpora_with_one_fraction_each_share_a_row(one_share_each, experiment):
    drawn = draw(one_share_each, experiment).panels
    shares = [(p.task, p.subtitle.partition("%")[0].split()[-1]) for p in drawn]
    rows = {"neurons": 1, "neuron_spread": 2}[experiment]  # of the spread one a ranking
    assert shares == [("UD-EWT:xpos", "5"), ("CoNLL-2000:chunk", "10")] * rows
    assert {p.axes.get_subplotspec().rowspan.start for p in drawn} == set(range(rows))
    legend = [text.get_text() for text in draw(one_share_each, experiment).legends[0].get_texts()]
    assert not any("%" in name for name in legend)


@pytest.mark.parametrize("experiment", ["neurons", "smallest_set", "selectivity"])
def test_no_two_sets_look_the_same(points, one_share_each, experiment):
    for study in (points, one_share_each):
        if experiment not in set(study["experiment"]):
            continue
        for panel in draw(study, experiment).panels:
            styles = [
                (m.style["color"], m.style["marker"], m.style["markerfacecolor"])
                for m in panel.marks
                if m.kind == "line"
            ]
            assert len(set(styles)) == len(styles)


def pruned(folder, tasks, train_rows, counts=(6,)):
    rows = prune(tasks=tasks, depth=12, counts=counts)  # finetuned on 5000 examples
    study = write_results(
        folder, rows, lambda p: 0.9 - 0.1 * (p.condition == "bottom"), depth=12, train_rows=train_rows
    )
    return finished(load_points(study))


def test_pruned_layers_with_the_published_values(tmp_path):
    points = pruned(tmp_path, ("SST-2",), 5000, (3, 6))
    figure = draw(points, "prune", overlay=True)
    (panel,) = figure.panels
    text = crosses_caption(figure, points, "prune")
    assert text.startswith("Crosses, published for BERT: Durrani et al. 2021, Tables 2 and 6")
    crosses = [line.get_xdata()[0] for line in panel.axes.lines if line.get_marker() == "x"]
    own = [line.get_xdata()[1] for line in panel.axes.lines if line.get_marker() in ("o", "s")]
    assert crosses == pytest.approx(own), "each at the x of its own line"
    published = {m.attributes["condition"]: m.table for m in panel.marks if m.kind == "published"}
    assert {name: table.values.tolist() for name, table in published.items()} == {
        "top": [[6, pytest.approx(0.903)]],
        "bottom": [[6, pytest.approx(0.881)]],
    }


def test_no_published_values_of_whole_training_sets_for_a_study_with_few_examples(tmp_path):
    points = pruned(tmp_path, ("SST-2",), 67349)
    figure = draw(points, "prune", overlay=True)
    assert all(mark.kind != "published" for panel in figure.panels for mark in panel.marks)
    assert crosses_caption(figure, points, "prune") == ""
    (table,) = paper_tables(points, "prune")
    assert not any(name.startswith("published") for name in table.headers)
    assert "Published" not in table.note


def test_many_curves_have_bars_on_the_first_alone(tmp_path):
    tasks = ("SST-2", "RTE", "CoLA", "QNLI")
    study_points = word_points(("bert-base-uncased",), tasks, ("UD-EWT:xpos",), depth=DEPTH)
    many = finished(load_points(write_results(tmp_path, study_points, forgetting(DEPTH), depth=DEPTH)))
    for experiment in ("word_probing", "neuron_spread"):
        figure = draw(many, experiment)
        for panel in figure.panels:
            assert [mark.bars for mark in panel.marks] == [True] + [False] * len(tasks)
        assert figure.show_trials is False
        assert "Only the first curve has error bars" in caption(many, experiment)


def test_single_trials_are_shown_in_all_panels_of_a_figure_or_in_none(tmp_path):
    usual = {"kind": "neurons", "shares": [0.05]}
    kinds = [usual, usual | {"rankings": ["probeless"], "finetuned_on": []}]
    setup = ("bert-base-uncased",), ("SST-2", "RTE", "CoLA"), ("UD-EWT:xpos",)
    study_points = word_points(*setup, kinds, depth=DEPTH)
    mixed = finished(load_points(write_results(tmp_path, study_points, forgetting(DEPTH), depth=DEPTH)))
    figure = draw(mixed, "neuron_spread")
    assert [len(panel.marks) for panel in figure.panels] == [4, 1]
    assert figure.show_trials is False
    assert "one trial" not in [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("experiment", ["neurons", "smallest_set"])
def test_x_axis_is_finetuned_on_only_if_some_models_were_finetuned(points, one_share_each, experiment):
    assert chart_of(draw(points, experiment), experiment, "", "")["x"] == "finetuned on"
    assert chart_of(draw(one_share_each, experiment), experiment, "", "")["x"] == "model"


def test_set_size_is_in_the_subtitle_if_all_sets_have_the_same(tmp_path):
    kinds = [{"kind": "neurons", "shares": [0.05]}, {"kind": "selectivity", "shares": [0.05]}]
    study_points = word_points(("bert-base-uncased",), (), ("UD-EWT:xpos", "PMB:sem"), kinds, depth=DEPTH)
    same_size = finished(load_points(write_results(tmp_path, study_points, forgetting(DEPTH), depth=DEPTH)))
    subtitles = {e: {p.subtitle for p in draw(same_size, e).panels} for e in set(same_size["experiment"])}
    assert subtitles == {
        "neurons": {"sets of 5% of the neurons"},
        "selectivity": {"sets of 5% of the neurons"},
        "description_length": {"sets of 5% of the neurons"},
        "neuron_spread": {"top 5%"},
        "smallest_set": {""},
    }


def test_few_curves_all_have_bars(points):
    assert all(mark.bars for panel in draw(points, "word_probing").panels for mark in panel.marks)
    assert "Only the first curve" not in caption(points, "word_probing")


@pytest.mark.parametrize("experiment", ["smallest_set", "selectivity", "description_length"])
def test_dot_plots_share_one_axis_from_zero(points, experiment):
    figure = draw(points, experiment)
    assert len({panel.axes.get_ylim() for panel in figure.panels}) == 1
    assert figure.panels[0].axes.get_ylim()[0] == 0
    chart = chart_of(figure, experiment, "", "")
    for which in range(4):
        ranges = [tuple((panel["scales"][which] or panel["scales"][0])["range"]) for panel in chart["panels"]]
        assert len(set(ranges)) == 1
        assert ranges[0][0] == 0


def test_labels_of_corpora_sets_and_rankings(one_share_each):
    chart = chart_of(draw(one_share_each, "neuron_spread"), "neuron_spread", "", "")
    assert {dim["label"]: dim["values"] for dim in chart["dims"]} == {
        "corpus": ["UD-EWT:xpos", "CoNLL-2000:chunk"],
        "ranking": ["LCA", "probeless"],
    }
    assert summary_grid(one_share_each, "neurons").label_columns[0] == "corpus"
    assert summary_grid(one_share_each, "neurons").columns == ("5", "10", "all")
    assert summary_grid(one_share_each, "neurons").x_label == "set (% of neurons)"


def test_alt_text_names_the_models_and_crosses_belong_to_their_sets(points):
    chart = chart_of(draw(points, "neurons", overlay=True), "neurons", "", "", overlay=True)
    alt = next(p["alt"] for p in chart["panels"] if p["sub"].startswith("bert"))
    assert " at pretrained, " in alt
    assert " at SST-2, " in alt
    assert " at 0" not in alt
    crosses = [mark for mark in chart["marks"] if mark["kind"] == "published"]
    assert all(chart["marks"][mark["of"]]["color"] == mark["color"] for mark in crosses)
    owners = {chart["marks"][mark["of"]]["label"] for mark in crosses}
    assert owners == {"all neurons", "top 5%", "bottom 5%", "top 10%", "bottom 10%"}


def test_crosses_are_of_the_papers_own_ranking_and_their_caption_names_it(one_share_each):
    figure = draw(one_share_each, "neurons", overlay=True)
    sets = {m.attributes["condition"] for p in figure.panels for m in p.marks if m.kind == "published"}
    assert sets == {"all neurons", "top", "bottom"}
    text = crosses_caption(figure, one_share_each, "neurons")
    assert "published for BERT: Durrani" in text
    assert "Penn Treebank" in text


def test_tables_in_the_format_of_the_paper(points):
    tables = {table.label: table for table in paper_tables(points, "neurons")}
    chosen = tables["CoNLL-2000:chunk, roberta-base: accuracy with sets of neurons"]
    assert [row["finetuned on"] for row in chosen.rows] == ["pretrained", "SST-2", "RTE"]
    assert chosen.rows[1]["published bottom"] == "60.7"
    assert chosen.rows[1]["bottom 10%"].startswith("4")
    assert chosen.note.endswith("Published: Durrani et al. 2021, Tables 1, 4 and 5, for RoBERTa.")
    (seven,) = paper_tables(points, "selectivity")
    rows = [r for r in seven.rows if r["corpus"] == "UD-EWT:xpos" and r["model"] == "bert-base-uncased"]
    row = rows[0]
    assert [r["neurons"] for r in rows[:2]] == ["all", "top 5%"]
    assert row["published selectivity"] in ("14.4", "14.5")
    own = [float(row[name].split()[0]) for name in ("accuracy", "selectivity")]
    assert own[0] - own[1] == pytest.approx(50, abs=0.11)
    assert row["compression"].startswith(("4.0", "3.9"))
    assert len(seven.headers) <= 10
    assert "Compression: how many times shorter" in seven.note
    assert seven.note.endswith("for BERT and RoBERTa.")


def test_the_pretrained_model_alone_keeps_its_name_as_the_row_label(one_share_each):
    for table in paper_tables(one_share_each, "neurons"):
        assert next(iter(table.headers)) == "finetuned on"
        assert [row["finetuned on"] for row in table.rows] == ["pretrained"]


def test_pruning_is_table_2(tmp_path):
    (table,) = paper_tables(pruned(tmp_path, ("SST-2", "QNLI"), 5000), "prune")
    assert next(iter(table.headers)) == "task"
    assert table.note.endswith("Tables 2 and 6, for BERT.")
    assert [row["task"] for row in table.rows] == ["SST-2", "QNLI"]
    row = table.rows[1]
    assert (row["baseline"], row["bottom 6 dropped"]) == ("90.0 ±0.0", "80.0 ±0.0")
    assert (row["published baseline"], row["published top 6"], row["published bottom 6"]) == (
        "91.1",
        "87.6",
        "83.7",
    )


def test_the_report_contains_all_of_it(folder):
    page = write_report(folder, overlay=True).read_text()
    for text in (
        "Word-level probing by layer",
        "accuracy with sets of neurons",
        "accuracy minus control task",
        "published bottom",
    ):
        assert text in page
    for experiment in WORD_EXPERIMENTS:
        assert (folder / "figures" / f"{experiment}.png").stat().st_size > 5000
    summary = (folder / "summary.csv").read_text()
    assert "neuron_spread,RTE: top 5%,roberta-base,CoNLL-2000:chunk" in summary


def test_the_caption_says_that_words_of_decoders_have_less_context(points):
    text = "a word sees only the words to the left of it"
    assert text not in caption(points, "word_probing")
    models = list(dict.fromkeys(points["model"]))
    mixed = points.assign(family=points["family"].where(points["model"] != models[0], "llama"))
    assert f"{text} (" in caption(mixed, "word_probing")
    assert "in an encoder it sees the whole sentence" in caption(mixed, "word_probing")
    assert f"{text}." in caption(points.assign(family="gpt2"), "word_probing")
