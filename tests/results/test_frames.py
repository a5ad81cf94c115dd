"""Reading results.db: values and rows, helpful errors, a running study is not disturbed."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest
from synthetic_results import incremental, keeping, localized, trial, write_results

from whichlayers.analysis.baseline_differences import differences_from_baseline
from whichlayers.errors import WhichlayersError
from whichlayers.results.frames import (
    finished,
    load_epochs,
    load_points,
    load_runs,
    load_study_summary,
    load_trials,
)
from whichlayers.trial import Adapter, Point, Probe, Training


@pytest.fixture
def folder(tmp_path):
    def score(point):
        if point.trial.seed == 2:
            return "loss is not finite" if point.x == 1 else None
        return 0.5 + point.x / 100 + point.trial.seed / 1000

    return write_results(tmp_path / "study", incremental(tasks=("SST-2", "CoLA"), depth=2), score, depth=2)


def test_a_row_per_point_with_the_last_epoch_of_done_trials(folder):
    points = load_points(folder)
    assert len(points) == 2 * 3 * 3
    row = points.query("task == 'CoLA' and x == 1 and seed == 1").iloc[0]
    assert (row.metric, row.status, row.epochs, row.depth) == ("mcc", "done", 2, 2)
    assert row.value == pytest.approx(0.511)
    assert row.dev_loss == pytest.approx(1 - 0.511)
    assert row.train_loss == pytest.approx(0.9 - 0.511)
    failed = points.query("status == 'failed'")
    assert set(failed.error) == {"loss is not finite"}
    assert failed.value.isna().all()
    expected = (
        "experiment condition x model model_fingerprint task train_size seed head recipe keep_layer_norm "
    )
    expected += "reinit_lr_factor trial_id status error metric value dev_loss train_loss epochs seconds"
    assert set(expected.split()) <= set(points.columns)


def peft_points(baseline_lrs=(2e-5,), epochs=3):
    """A baseline for each learning rate, and adapters with one of their own, for two seeds."""
    for seed in (0, 1):
        for lr in baseline_lrs:
            training = Training(lr=lr, epochs=epochs)
            yield Point("adapt", "all pretrained", 0, trial(seed=seed, training=training))
        adapted = trial(
            seed=seed, training=Training(lr=1e-3, epochs=3), adapter=Adapter("lora", (1,), ("query",))
        )
        yield Point("adapt", "everywhere, lr 0.001", 2, adapted)
        yield Point("adapt", "everywhere, lr 0.01", 2, replace(adapted, training=Training(lr=1e-2)))


def score_of_lr(point):
    return 0.5 + 100 * point.trial.training.lr * (1 + point.trial.seed / 10)


def test_points_with_a_learning_rate_of_their_own_are_on_the_curve_of_their_baseline(tmp_path):
    points = finished(load_points(write_results(tmp_path, peft_points(), score_of_lr, depth=2)))
    assert set(points["variant"]) == {""}
    assert points["training"].nunique() == 1
    found = differences_from_baseline(points).set_index("condition")
    # (lr - 2e-5) times 100 (1 + seed / 10), over two seeds
    assert found.loc["everywhere, lr 0.001", "mean"] == pytest.approx(0.098 * 1.05)
    assert found.loc["everywhere, lr 0.01", "mean"] == pytest.approx(0.998 * 1.05)
    assert set(found["n"]) == {2}


def test_without_a_baseline_the_table_of_differences_has_its_columns(tmp_path):
    points = finished(load_points(write_results(tmp_path, peft_points(), score_of_lr, depth=2)))
    found = differences_from_baseline(points[:0])
    assert found.empty
    assert list(found) == list(differences_from_baseline(points))


def test_points_with_a_learning_rate_of_their_own_are_repeated_for_each_baseline(tmp_path):
    points = finished(load_points(write_results(tmp_path, peft_points((2e-5, 1e-4)), score_of_lr, depth=2)))
    found = differences_from_baseline(points).set_index(["variant", "condition"])["mean"]
    assert found.to_dict() == pytest.approx({
        ("lr 2e-05", "everywhere, lr 0.001"): 0.098 * 1.05, ("lr 2e-05", "everywhere, lr 0.01"): 0.998 * 1.05,
        ("lr 0.0001", "everywhere, lr 0.001"): 0.09 * 1.05, ("lr 0.0001", "everywhere, lr 0.01"): 0.99 * 1.05,
    })  # fmt: skip
    assert len(points) == 2 * 2 * 3


def test_a_baseline_that_differs_in_more_than_the_learning_rate_is_another_curve(tmp_path):
    points = finished(load_points(write_results(tmp_path, peft_points(epochs=5), score_of_lr, depth=2)))
    assert differences_from_baseline(points).empty


def test_probes_with_other_settings_are_variants(tmp_path):
    """Statistics that compare the points of a curve do not mix them; those of one setting have no label."""

    def probes(*conditions):
        return [
            Point("probing", condition, layer, trial(seed=seed, probe=Probe(layer, condition[8:] or "mean")))
            for condition in conditions
            for layer in (1, 2)
            for seed in (0, 1)
        ]

    folder = write_results(tmp_path / "two", probes("pooling mean", "pooling summary"), score_of_lr, depth=2)
    assert set(load_points(folder)["condition"]) == {"pooling mean", "pooling summary"}
    points = finished(load_points(folder))
    assert set(points["condition"]) == {""}
    assert points.groupby("variant").size().to_dict() == {"pooling mean": 4, "pooling summary": 4}
    one = finished(load_points(write_results(tmp_path / "one", probes(""), score_of_lr, depth=2)))
    assert set(one["variant"]) == set(one["condition"]) == {""}


def test_an_unfinished_trial_has_no_value_even_where_it_has_epochs(folder):
    with sqlite3.connect(folder / "results.db") as db:
        db.execute("UPDATE trials SET status = 'running' WHERE seed = 1")
    assert load_points(folder).query("seed == 1").value.isna().all()
    assert set(finished(load_points(folder)).seed) == {0}


def test_epochs_runs_trials_and_summary(folder):
    assert load_epochs(folder).query("metric == 'dev_loss'").groupby("epoch").size().to_dict() == {
        1: 12,
        2: 12,
    }
    run = load_runs(folder).iloc[0]
    assert run.versions["torch"] == "2.13.0"
    assert (run.finished - run.started).total_seconds() == 3723
    assert len(load_trials(folder)) == 18
    summary = load_study_summary(folder)
    assert (summary.name, summary.total) == ("a study", 18)
    assert summary.counts == {"done": 12, "failed": 2, "running": 0, "pending": 4}
    assert [(m.name, m.depth) for m in summary.models] == [("bert-base-uncased", 2)]
    assert {t.name: t.metric for t in summary.tasks} == {"SST-2": "accuracy", "CoLA": "mcc"}


def test_a_trial_with_nothing_reinitialized_ends_the_curve_of_every_recipe(tmp_path):
    made = incremental(depth=2, trials=2, recipes=("as_described", "as_released"))
    points = load_points(write_results(tmp_path, made, lambda p: 0.5, depth=2))
    assert len(points) == 2 * (2 + 2 + 1)
    curves = finished(points)
    assert curves.groupby(["variant", "x"]).size().to_dict() == {
        (recipe, k): 2 for recipe in ("as_described", "as_released") for k in (0.0, 1.0, 2.0)
    }


def test_variants_name_the_settings_that_differ(tmp_path):
    made = []
    for changed in ({}, {"lr": 1e-4}, {"lr_factors": ((1, 5.0), (2, 5.0))}):
        for k in (0, 1):
            made.append(
                Point("incremental", "", k, trial(surgery=keeping(k, 2), training=Training(**changed)))
            )
    made.append(Point("incremental", "", 1, trial(surgery=keeping(1, 2, keep_layer_norm=True))))
    made += localized(depth=3, trials=1, block=1)
    curves = finished(load_points(write_results(tmp_path, made, lambda p: 0.5, depth=2)))
    variants = set(curves.query("experiment == 'incremental'").variant)
    assert variants == {
        "layer norms reset, one lr for all layers, lr 2e-05",
        "layer norms reset, one lr for all layers, lr 0.0001",
        "layer norms reset, re-initialized layers at 5× lr, lr 2e-05",
        "layer norms kept, one lr for all layers, lr 2e-05",
    }


def test_epochs_that_depend_on_the_size_are_no_variant(tmp_path):
    made = [
        Point("incremental", "", 0, trial(size=size, surgery=keeping(0, 2), training=Training(epochs=epochs)))
        for size, epochs in ((500, 5), (5000, 3))
    ]
    assert set(finished(load_points(write_results(tmp_path, made, lambda p: 0.5))).variant) == {""}


def test_a_baseline_without_any_reinitialized_trial_keeps_its_own_recipe(tmp_path):
    made = [Point("prune", "all pretrained", 0, trial())]
    curves = finished(load_points(write_results(tmp_path, made, lambda p: 0.5)))
    assert curves.recipe.tolist() == ["as_described"]
    assert curves.keep_layer_norm.tolist() == [False]


def test_models_with_the_same_name_get_unique_names(tmp_path):
    import dataclasses

    first = trial()
    second = dataclasses.replace(first, model_fingerprint="ffff0000")
    made = [Point("incremental", "", 6, t) for t in (first, second)]
    points = load_points(write_results(tmp_path, made, lambda p: 0.5))
    assert set(points.model) == {"bert-base-uncased@bert", "bert-base-uncased@ffff"}


def test_errors_say_what_is_wrong(tmp_path):
    with pytest.raises(WhichlayersError, match=r"holds no results\.db: give the folder"):
        load_points(tmp_path)
    with pytest.raises(WhichlayersError, match="newer whichlayers"):
        load_study_summary(write_results(tmp_path / "new", [], lambda p: None, version=99))
    pending = load_points(write_results(tmp_path / "waiting", incremental(depth=2), lambda p: None))
    with pytest.raises(WhichlayersError, match=r"no trial has finished.*9 pending"):
        finished(pending)
    with pytest.raises(WhichlayersError, match="it has no trials"):
        finished(load_points(write_results(tmp_path / "none", [], lambda p: None)))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "results.db").write_text("not a database, only long enough to look at " * 40)
    with pytest.raises(WhichlayersError, match="is not a valid results database"):
        load_points(tmp_path / "broken")


def test_reading_neither_waits_for_a_writer_nor_changes_anything(folder):
    writer = sqlite3.connect(folder / "results.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM epochs")
    assert load_points(folder).value.notna().sum() == 12
    writer.execute("ROLLBACK")
    writer.close()


def test_a_folder_without_write_permission_can_be_read(folder):
    if (folder / "results.db-wal").exists():
        pytest.skip("the writer left its log")
    folder.chmod(0o555)
    try:
        assert len(load_points(folder)) == 18
    finally:
        folder.chmod(0o755)


def test_trials_that_are_no_longer_part_of_the_study_do_not_count(folder):
    with sqlite3.connect(folder / "results.db") as db:
        db.execute("DELETE FROM points WHERE trial_id IN (SELECT id FROM trials WHERE task = 'CoLA')")
    assert load_study_summary(folder).total == len(load_trials(folder)) == 9
    assert [task.name for task in load_study_summary(folder).tasks] == ["SST-2"]
    assert load_epochs(folder).trial_id.nunique() == 6


def test_rows_keep_the_order_of_the_study_file(folder):
    assert list(dict.fromkeys(load_points(folder).task)) == ["SST-2", "CoLA"]
    assert list(dict.fromkeys(finished(load_points(folder)).task)) == ["SST-2", "CoLA"]


def test_blocks_of_two_lengths_are_two_conditions(tmp_path):
    made = localized(depth=4, trials=1, block=1) + localized(depth=4, trials=1, block=2)[2:]
    curves = finished(load_points(write_results(tmp_path, made, lambda p: 0.5, depth=4)))
    assert {"block reinitialized, of 1", "block reinitialized, of 2"} <= set(curves.condition)
    assert not curves.duplicated(["condition", "x", "seed"]).any()
