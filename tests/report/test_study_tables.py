"""Data statistics, penalties and run times: from results.db to the page, beside the published values."""

from __future__ import annotations

import dataclasses
import json
import math
import sqlite3

import pandas as pd
import pytest
from synthetic_results import incremental, lifelike, localized, trial, write_results
from synthetic_words import forgetting, word_points

from whichlayers.analysis.variance_components import variance_table
from whichlayers.config.corpus import CorpusSpec
from whichlayers.config.sections import TaskSpec
from whichlayers.experiments import display_of
from whichlayers.report.build import write_report
from whichlayers.report.metadata import study_setup
from whichlayers.report.study_tables import (
    corpus_table,
    penalty_table,
    run_time_table,
    task_table,
    variance_component_table,
)
from whichlayers.results.db import ResultsDB
from whichlayers.results.frames import (
    finished,
    load_data_statistics,
    load_epochs,
    load_points,
    load_runs,
)
from whichlayers.results.records import DataStatistics
from whichlayers.runs.assets import Assets
from whichlayers.trial import Point, Probe

SST2, COLA = DataStatistics(2, 67349, 872), DataStatistics(2, 8551, 1043)


def as_dicts(table) -> list[dict[str, str]]:
    return [{header: row[name] for name, header in table.headers.items()} for row in table.rows]


def test_statistics_of_loaded_data(tmp_path):
    specs = [TaskSpec(name="builtin:sentiment")], [CorpusSpec(name="builtin:pos")]
    assets = Assets(tmp_path)
    task, corpus = assets.data_statistics(*specs).values()
    loaded = assets._load_corpus(next(iter(assets.index.corpora.values())))
    assert (task.classes, task.test, task.train_sentences) == (2, None, None)
    assert (task.train, task.dev) == (
        assets.task_info(specs[0][0]).train_rows,
        assets.task_info(specs[0][0]).dev_rows,
    )
    words = [word for sentence in loaded.test.sentences for word in sentence.words]
    tags = {tag for sentence in loaded.train.sentences for tag in sentence.tags}
    assert (corpus.test, corpus.classes) == (len(words), len(tags))
    assert corpus.train_sentences == len(loaded.train.sentences)


def test_data_of_a_study_and_of_one_without_stored_statistics(tmp_path):
    folder = write_results(tmp_path, incremental(("SST-2", "CoLA"), (500,)), lifelike(6), train_rows=9000)
    old = load_data_statistics(folder)
    assert list(old["name"]) == ["CoLA", "SST-2"]
    assert list(old["train"]) == [9000, 9000]
    assert old["dev"].isna().all()
    with ResultsDB.open(folder / "results.db", "a study") as db:
        db.set_data_statistics({"SST-2-fp": SST2, "CoLA-fp": COLA})
    first, second = as_dicts(task_table(load_data_statistics(folder)))
    assert first == {
        "task": "CoLA", "metric": "Matthews correlation", "classes": "2", "train": "8,551", "dev": "1,043",
        "published train": "8,500", "published dev": "1,000",
    }  # fmt: skip
    assert (second["dev"], second["published dev"]) == ("872", "872")


def test_words_sentences_and_tags_of_corpora():
    sizes = {"train": 50408, "dev": None, "test": 9000, "train_sentences": 7745, "dev_sentences": None}
    sizes |= {"test_sentences": 1000, "classes": 71}
    data = pd.DataFrame([{"name": "PMB:sem", "kind": "tagging", "metric": "accuracy"} | sizes])
    (row,) = as_dicts(corpus_table(data))
    assert row == {
        "corpus": "PMB:sem", "tags": "71", "train: words": "50,408", "train: sentences": "7,745",
        "test: words": "9,000", "test: sentences": "1,000", "published tags": "73",
        "published train": "36,928", "published dev": "5,301", "published test": "10,600",
    }  # fmt: skip
    assert task_table(data) is None


def test_penalties_found_by_the_search(tmp_path):
    folder = write_results(tmp_path, word_points(), forgetting())
    points = finished(load_points(folder))
    assert penalty_table(points, load_epochs(folder)) is None
    with sqlite3.connect(folder / "results.db") as db:
        searched = points[points["experiment"] == "neurons"].drop_duplicates("trial_id")
        for trial in searched["trial_id"]:
            rows = [(trial, 2, "l1", 1e-4), (trial, 2, "l2", 0.01)]
            db.executemany("INSERT INTO epochs VALUES (?, ?, ?, ?)", rows)
    rows = as_dicts(penalty_table(points, load_epochs(folder)))
    assert len(rows) == len(searched.drop_duplicates(["task", "model"]))
    assert {(row["L1"], row["L2"]) for row in rows} == {("0.0001", "0.01")}
    known = [
        row for row in rows if row["corpus"] == "UD-EWT:xpos" and "bert-base" in row.get("model", "bert-base")
    ]
    assert known
    assert {(row["published L1"], row["published L2"]) for row in known} == {("0.001", "0.01")}


def test_run_times_add_up_over_distinct_trials(tmp_path):
    study_points = incremental(("SST-2",), (500, 5000), 3) + localized(size=5000)
    folder = write_results(tmp_path, study_points, lifelike(6))  # every trial took 60 s
    points = finished(load_points(folder))
    table = run_time_table(points, load_runs(folder))
    rows = {(row["experiment"], row["examples"]): row for row in as_dicts(table)}
    expected = {("incremental", 500): "1 min 30 s", ("localized", 5000): "9 min 00 s"}
    for (experiment, size), published in expected.items():
        chosen = points[(points["experiment"] == experiment) & (points["train_size"] == size)]
        row, count = rows[display_of(experiment).title, f"{size:,}"], chosen["trial_id"].nunique()
        assert (row["trials"], row["per trial"]) == (str(count), "1 min 00 s")
        assert (row["sum of trials"], row["published per trial"]) == (f"{count} min 00 s", published)
    assert "On cpu." in table.note
    assert "Tamkin et al. 2020 (0.3 min / epoch, 5 epochs; Titan XP)" in table.note


def test_the_page_has_the_tables(tmp_path):
    folder = write_results(tmp_path, incremental(("SST-2",), (500,)), lifelike(6))
    with sqlite3.connect(folder / "results.db") as db:
        stored = {"SST-2-fp": {"classes": 2, "train": 67349, "dev": 872}}
        db.execute("INSERT INTO meta VALUES ('data_statistics', ?)", (json.dumps(stored),))
    page = write_report(folder).read_text(encoding="utf-8")
    assert "<h3>Tasks</h3>" in page
    assert "872" in page
    assert "<h3>Run time</h3>" in page
    assert "<h3>Corpora</h3>" not in page


def test_variance_components_of_a_study_that_varies_seeds_apart(tmp_path):
    """Every other trial has another subset, which shifts its score by two points; the order has no effect."""

    def apart(point):
        seeds = (("subset", point.trial.seed % 6), ("order", point.trial.seed // 6))
        return dataclasses.replace(point, trial=dataclasses.replace(point.trial, seeds=seeds))

    points = [apart(p) for p in incremental(("SST-2",), (500,), trials=30, ks=(0, 3))]
    folder = write_results(
        tmp_path, points, lambda p: 0.7 + 0.02 * (p.trial.seed % 2) + 1e-3 * math.sin(17 * p.trial.seed)
    )
    page = write_report(folder).read_text(encoding="utf-8")
    stored = pd.read_csv(folder / "variance_components.csv")
    expected = variance_table(finished(load_points(folder), shared_seeds=True))
    assert stored["variance"].to_numpy() == pytest.approx(expected["variance"].to_numpy())
    rows = as_dicts(variance_component_table(expected))
    assert [row["point"] for row in rows] == ["x = 0", "x = 3"]
    assert list(rows[0]) == [
        "experiment",
        "task",
        "examples",
        "point",
        "trials",
        "subset",
        "order",
        "residual",
    ]
    subset = expected[expected["component"] == "subset"].iloc[0]
    assert rows[0]["trials"] == "30"
    assert rows[0]["subset"] == (
        f"{subset.share:.0%}: {100 * math.sqrt(subset.variance):.1f} "
        f"({100 * math.sqrt(subset.low):.1f} to {100 * math.sqrt(subset.high):.1f})"
    )
    assert 100 * math.sqrt(subset.variance) == pytest.approx(1.1, abs=0.1)  # half of two points, 6 seeds
    assert rows[0]["order"].startswith("0%: 0.0 (0.0 to ")
    assert "Variance components</h2>" in page
    unlimited = expected.assign(high=math.inf)
    assert as_dicts(variance_component_table(unlimited))[0]["subset"].endswith("to ∞)")


def test_no_variance_components_in_other_studies(tmp_path):
    folder = write_results(tmp_path, incremental(("SST-2",), (500,), trials=12, ks=(0, 3)), lifelike(6))
    assert variance_component_table(variance_table(finished(load_points(folder), shared_seeds=True))) is None
    assert "Variance components" not in write_report(folder).read_text(encoding="utf-8")
    assert not (folder / "variance_components.csv").exists()


def test_epochs_of_finetuning_and_of_probes_are_told_apart(tmp_path):
    probes = [Point("probing", "", k, trial(size=9000, probe=Probe(k))) for k in range(3)]
    folder = write_results(tmp_path, incremental(trials=1) + probes, lifelike(6))
    points = finished(load_points(folder))
    is_probe = points["kind"] == "probe"
    assert 0 < is_probe.sum() < len(points)
    points["epochs"] = points["epochs"].mask(is_probe, 1 + points["x"]).mask(~is_probe, 3)
    for chosen, expected in (
        (points, "3 (finetuning), 1 to 3 (probes)"),
        (points[~is_probe], "3"),
        (points[is_probe], "1 to 3 (probes)"),
    ):
        assert dict(study_setup(chosen, chosen))["Epochs"] == expected
